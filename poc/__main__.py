"""python -m poc: the command line (`poc.cli`)."""

import sys

from poc.cli import main

if __name__ == "__main__":
    sys.exit(main())
