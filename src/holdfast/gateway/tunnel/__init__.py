"""Tunnels of sessions: ports of a box with a host name of their own."""
