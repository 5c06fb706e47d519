"""Runs: the types of requests about runs and what belongs to them: agents, checkpoints, tasks, repositories."""
