"""Sessions over the API: their life and prompts, how people reach them, their inbox and workflows."""
