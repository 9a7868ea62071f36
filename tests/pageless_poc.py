"""python -m tests.pageless_poc: the command line, but `run` writes no pages."""

import sys

from poc.cli import main, run

if __name__ == "__main__":
    run.write_report = lambda options, known_prices: None
    sys.exit(main())
