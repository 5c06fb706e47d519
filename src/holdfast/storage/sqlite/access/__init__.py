"""Who may do what, in SQLite: keys, members, logins, shares, tenants."""
