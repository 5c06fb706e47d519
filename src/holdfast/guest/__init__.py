"""What runs inside a box. Standard library only, Python 3.9+, and nothing of ours: it is copied in and runs alone."""
