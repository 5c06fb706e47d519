"""All stores in one SQLite file, beside the server."""
