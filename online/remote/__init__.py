"""Acting elsewhere: a team of collectors, what it sends, and how a collector answers."""
