"""The contracts of the stores of who may do what."""
