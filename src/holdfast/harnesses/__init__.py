"""The coding agents that Holdfast runs. One folder each, one line each in the registry."""
