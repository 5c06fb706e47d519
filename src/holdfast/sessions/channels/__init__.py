"""Channels: chats outside of Holdfast whose messages become prompts of a session, and its answers."""
