"""Who may do what on threads: keys and tokens, who may write which entries, and the seal of the server."""
