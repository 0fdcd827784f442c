"""Arithmetic on lists of tensors, random numbers and stochastic rounding."""
