"""Chunks of actions at a fixed rate, while inference takes its time."""
