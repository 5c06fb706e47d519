"""What code in a box can ask of its host: tools, models, children, SUBMIT; and the budget for all of it."""
