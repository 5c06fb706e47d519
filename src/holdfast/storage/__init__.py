"""The database: implements the store contracts of the packages below it. `sqlite/` is the embedded implementation."""
