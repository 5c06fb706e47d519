"""Sessions: workspaces that people and agents share. A session is a thread, a box, and runs on it by a queue."""
