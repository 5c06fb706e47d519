"""Reconciling runs: finding those that have died, and ending each exactly once."""
