"""Training: agents, their ordered updates, the Learner that steps them, and the sources of their batches."""
