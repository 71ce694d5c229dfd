"""Cells to attempts: asks models, under caps, resumes, and prepares what a study needs first."""
