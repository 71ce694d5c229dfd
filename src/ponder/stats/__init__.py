"""Statistics: outcomes in, estimates out, each with an interval clustered by problem.

data = columns(outcomes)  # of one task and one model
by_size(data), effort(data), critical_size(data)
"""
