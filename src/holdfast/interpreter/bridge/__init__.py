"""What code in a box can call on its host: tools, models, children and SUBMIT, within a budget."""
