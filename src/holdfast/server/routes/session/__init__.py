"""Routes of sessions: their life and prompts, their tools, channels, inbox and gateway."""
