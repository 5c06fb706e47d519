"""A persistent Python in a box, with callbacks to the host. `holdfast.Interpreter` is its facade."""
