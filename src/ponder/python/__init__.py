"""What `import ponder` offers: studies that run themselves, their results, and functions as plugins."""
