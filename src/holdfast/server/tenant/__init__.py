"""The tenants of a server: what each has, may use, and has done."""
