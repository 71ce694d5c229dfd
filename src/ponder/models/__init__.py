"""Whatever answers a request: one kind of model a file."""
