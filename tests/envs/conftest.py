"""Makes the helpers beside the tests importable under importlib import mode."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
