"""What the commands share: options and their grammar, output, progress, sweeps."""
