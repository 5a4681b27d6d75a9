"""What model-based algorithms stand on: the alarm and its signals, and models that are measured as they are learned."""
