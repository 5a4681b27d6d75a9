"""Makes the helpers beside the tests importable under importlib import mode."""
