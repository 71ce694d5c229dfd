"""Functions from model to cheaper model: one a file."""
