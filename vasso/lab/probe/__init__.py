"""Probing of a trained model."""
