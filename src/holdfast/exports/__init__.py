"""Threads as files, for people who have no server."""
