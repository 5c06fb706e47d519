"""What the agent of a session can ask for. Each operation is defined once, and offered in several ways."""
