"""The service of all boxes on one store: `boxes.Boxes` composes the parts that stand beside it."""
