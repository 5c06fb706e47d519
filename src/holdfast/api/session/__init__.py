"""Types of requests and responses of sessions: the sessions, their gateways, inboxes and workflows."""
