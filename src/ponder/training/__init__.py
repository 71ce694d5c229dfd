"""Training: engines, samples to train on, models that methods make, weights, process rewards."""
