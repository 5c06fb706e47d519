"""Boxes whose guest runs on this machine and passes descriptors: what the local and the process provider build on."""
