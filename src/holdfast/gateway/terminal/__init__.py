"""Terminals of sessions, and their protocol."""
