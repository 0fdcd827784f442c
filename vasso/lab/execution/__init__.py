"""Runs in parallel worker processes."""
