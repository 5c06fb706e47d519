"""Types of requests and responses about who may do what: keys, logins, tenants with their members, shares."""
