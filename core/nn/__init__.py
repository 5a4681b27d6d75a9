"""Networks: perceptrons, ensembles, encoders, normalisers, and those of noise and velocities."""
