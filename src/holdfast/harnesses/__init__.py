"""The coding agents that Holdfast runs. Each is one folder and one line in the registry."""
