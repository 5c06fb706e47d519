"""The contracts of the stores of models, prices and budgets."""
