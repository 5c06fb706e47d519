"""Commands of sessions: their life, their agent, what their agent may ask for, and how people reach them."""
