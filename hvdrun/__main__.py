"""`python -m hvdrun` is `horovodrun`."""

import sys

from hvdrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
