"""Policy heads: what draws actions, says their density and remembers an episode."""
