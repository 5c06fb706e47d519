"""The contracts of the stores of sessions."""
