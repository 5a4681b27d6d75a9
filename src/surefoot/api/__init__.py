"""What a python script calls: algorithms with `learn` and `predict`, in three lines."""
