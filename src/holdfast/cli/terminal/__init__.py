"""What all commands share to write to a terminal and read from it: text, tables, colours, sizes, times."""
