"""What everything of `core` stands on: errors, specs, options, random streams, files and checkpoints."""
