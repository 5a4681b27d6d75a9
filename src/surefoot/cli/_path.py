"""Takes the working directory off python's path where an empty entry of PYTHONPATH put it; imported before all else.

`export PYTHONPATH=$PYTHONPATH:/lib` leaves such an entry where PYTHONPATH was empty. Only modules that python has
imported by itself may be imported here.
"""

import os
import sys


def leave_out_working_directory() -> None:
    """Remove what an empty entry means, unless PYTHONPATH names the directory too or it is where packages lie."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = os.getcwd()
    named = any(entry and os.path.abspath(entry) == here for entry in entries)
    if "" in entries and entries != [""] and not named and not here.endswith("site-packages"):
        sys.path[:] = [entry for entry in sys.path if entry and entry != here]


leave_out_working_directory()
