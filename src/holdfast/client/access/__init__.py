"""Keys, logins, tenants and members, over the client."""
