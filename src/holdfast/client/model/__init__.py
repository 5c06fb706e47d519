"""Models, completions and costs, over the client."""
