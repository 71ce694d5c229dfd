"""Attempts on disk, in SQLite."""
