"""Launching a run: the request, the plan, and the steps from the claim to a live runner."""
