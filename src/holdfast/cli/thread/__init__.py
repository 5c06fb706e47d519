"""`holdfast thread`: threads and their entries."""
