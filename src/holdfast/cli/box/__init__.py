"""`holdfast box`: boxes, and what is done in them and with them."""
