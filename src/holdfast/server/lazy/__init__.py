"""Services that are loaded and opened in the background, while the server already answers requests."""
