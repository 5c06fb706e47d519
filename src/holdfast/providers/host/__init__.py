"""Boxes whose guest runs on this machine and passes descriptors. The local and the process provider share this code."""
