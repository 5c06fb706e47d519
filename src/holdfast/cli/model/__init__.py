"""`holdfast model`, `budget` and `cost`: the models, and what they cost."""
