"""python -m tests.pageless_poc: the command line, but `run` writes no pages, and waits less for a node."""

import sys
from typing import Any

from poc import cluster
from poc.cli import main, run

_connect = cluster.connect


def connect(*words: Any, **options: Any) -> None:
    """Join the cluster; a run waits half as long as usual for a node in place of a lost one."""
    _connect(*words, **options)
    from poc.cluster import scheduler  # imports Ray

    scheduler._REPLACE_SECONDS = 30.0


if __name__ == "__main__":
    run.write_report = lambda options, known_prices: None
    cluster.connect = connect
    sys.exit(main())
