"""Tasks: problems of a given size, and the grading of answers to them. One plugin per file."""
