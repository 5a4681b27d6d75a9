"""The experiment: run folders, what they may import, and the processes that train in them."""
