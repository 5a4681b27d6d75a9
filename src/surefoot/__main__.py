"""`python -m surefoot`: the same as the command `surefoot`."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # python puts the working directory first, where a file may have any module's name
        del sys.path[0]
    from surefoot.cli import main

    sys.exit(main())
