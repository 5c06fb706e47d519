"""Commands about who may do what: tenants, members, keys, logins, shared links, and the audit log."""
