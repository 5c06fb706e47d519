"""`holdfast demo`, and the sample that it runs."""
