"""The files that a run begins with, chosen and packed on this machine."""
