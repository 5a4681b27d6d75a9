"""Networks and optimiser steps in the native module: products, a training step on a tape, and their torch twins."""
