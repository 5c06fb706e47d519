"""Models, prices and budgets, in SQLite."""
