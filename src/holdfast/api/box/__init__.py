"""Boxes: the contract of a box, which providers and the client implement, and the types of requests about boxes."""
