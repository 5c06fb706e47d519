"""`holdfast image`: root filesystems that boxes start from, and building them."""
