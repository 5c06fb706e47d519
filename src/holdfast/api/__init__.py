"""The words on the wire, once: types of requests and responses, errors, outcome codes. Server and client share them.

The lowest layer: it imports nothing of ours, and neither pydantic nor FastAPI, so a client that uses it starts fast.
"""
