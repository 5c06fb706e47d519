"""Providers: each creates boxes of one kind, in its own module or folder. Only the registry names them."""
