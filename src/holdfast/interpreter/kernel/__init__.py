"""Python in the box, from the host: the kernel, its contexts, and calls to the host."""
