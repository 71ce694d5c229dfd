"""What an answer's length adds to its reward: one a file."""
