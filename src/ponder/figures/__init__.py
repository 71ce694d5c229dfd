"""Pictures of estimates: one a file."""
