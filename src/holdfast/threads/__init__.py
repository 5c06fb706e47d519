"""Threads: durable, append-only streams of entries, and the Durable Streams surface over them."""
