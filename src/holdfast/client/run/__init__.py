"""Runs at the server, and what belongs to them: agents, forks and tasks."""
