"""Length rewards: what a reply's length adds to its reward in training. One per file."""
