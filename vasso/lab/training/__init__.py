"""Training of a run: data, batches, closures, the loop and its checkpoints."""
