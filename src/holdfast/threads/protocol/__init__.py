"""The Durable Streams protocol: rules, framing, and requests and responses over a store."""
