"""What the agents of sessions ask for: carries out the operations of `holdfast.api.tools`."""
