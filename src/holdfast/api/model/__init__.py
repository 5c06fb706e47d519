"""Types of requests and responses about models: the models, what they cost, and budgets."""
