"""Routes about who may do what: keys, members and tenants, logins, shared links."""
