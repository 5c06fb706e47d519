"""Interpreters that live in the server."""
