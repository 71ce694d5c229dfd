"""Training: the loop, samples to train on, the models that methods make, averages of weights,
process rewards.
"""
