"""The processes of a run: workers, collectors, learners that share, and how they are stopped."""
