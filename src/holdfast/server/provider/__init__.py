"""The providers of a server: their accounts, setting one up, and trying one out."""
