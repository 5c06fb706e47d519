"""The runner of a session: stays in its box between prompts, speaks with the hub, and has the server of an agent."""
