"""Changing weights: one optimiser loop, samples to learn from, and the models that come out."""
