"""Attempts in, estimates out: clustered by problem, seeded, never a bare number.

data = columns(outcomes)  # one task, one model
by_size(data), effort(data), critical_size(data)
"""
