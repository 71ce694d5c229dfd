"""Problems of a size and the grading of answers to them: one task a file."""
