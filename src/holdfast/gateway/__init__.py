"""The gateway: people reach the editor, desktop, terminals and ports of a session through it, behind one login."""
