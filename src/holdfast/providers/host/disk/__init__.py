"""The files of boxes on this machine: the data directory, layers, volumes, the trash, and the limit on disk use."""
