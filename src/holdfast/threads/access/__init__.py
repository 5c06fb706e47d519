"""Access to threads: keys and tokens, which author may write which entries, and the server's seal."""
