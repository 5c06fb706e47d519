"""Types of requests and responses of threads and their entries."""
