"""`holdfast provider`: the providers of boxes, and their accounts."""
