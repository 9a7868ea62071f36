"""results.md, its figures and rows.csv, made from records and published rows."""

from __future__ import annotations

from pathlib import Path

from poc.journal import Record


def write(records: list[Record], *, page: Path, folder: Path) -> None:
    """Writes `page`, and rows.csv and figures in `folder`."""
