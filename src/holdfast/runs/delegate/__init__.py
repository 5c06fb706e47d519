"""Delegation: a thread starts tasks, which are threads of their own, and is told how they end."""
