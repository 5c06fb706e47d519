"""Named recipes for boxes, and the secrets that boxes use without seeing them."""
