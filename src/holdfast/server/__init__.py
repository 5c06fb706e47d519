"""The server: composition, configuration, authentication and errors. `serve.serve` is all that the CLI calls."""
