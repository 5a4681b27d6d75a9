"""What policies are worth, from data alone: fitted-Q evaluation, by networks and by least squares."""
