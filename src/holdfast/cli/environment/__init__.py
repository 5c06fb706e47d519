"""Commands about environments."""
