"""Named recipes for the boxes of runs, and the secrets that boxes use without seeing them."""
