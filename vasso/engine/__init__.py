"""Machinery of a step: wrapper, groups, checkpoints, passes, AMP, ranks, BatchNorm."""
