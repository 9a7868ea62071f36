"""python -m tests.pageless_poc: the command line, but `run` writes no pages, and waits less for another node."""

import sys
from typing import Any

from poc import cluster
from poc.cli import main, run

connect = cluster.connect


def connect_with_less_patience(*arguments: Any, **options: Any) -> None:
    connect(*arguments, **options)
    from poc.cluster import scheduler  # imports Ray

    scheduler._REPLACE_SECONDS = 15.0


if __name__ == "__main__":
    run.write_report = lambda options, known_prices: None
    cluster.connect = connect_with_less_patience
    sys.exit(main())
