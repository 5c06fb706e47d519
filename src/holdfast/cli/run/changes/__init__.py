"""The changes of a thread: shown, compared, and brought home."""
