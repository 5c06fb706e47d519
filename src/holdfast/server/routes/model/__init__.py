"""REST: models, completions, costs and budgets."""
