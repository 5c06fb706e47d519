"""REST: agents, runs, forks, tasks, and tests of the runtime."""
