"""Experiment settings as frozen values: tasks, methods, learning rates, runs and their ids."""
