"""What opens a session in a browser: tokens, tickets and cookies."""
