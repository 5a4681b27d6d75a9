"""What a worker process does: train some seeds of a run, from data, online, or one sample at a time."""
