"""Pages as tests read them: their tables, what holds for every page, and records with known figures for them."""

import functools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from PIL import ImageFont

from poc.published import Study
from poc.records.record import Record
from poc.report.markdown import Block
from poc.report.results import Results
from tests.builders import TEST_CPU, build, record_of

Lines = list[dict[str, str]]
WIDTH, PADDING = 880.0, 27.0
"""Pixels of a page on GitHub, and of a cell without its text."""
LETTERS = 0.88
"""Width of Helvetica's letters, as GitHub shows them, over that of DejaVu Sans."""
BROKEN = r"\b(?<!loss was )(None|nan|NaN|inf|Infinity)\b|<NA>|\(\)|\( |, ,|\*\*\*\*|\| ,| [.;:]( |$)"
FOOTNOTE = r"[\d)%][*†‡§]"
GPUS = [{"index": index, "name": "Test GPU", "capability": [7, 0], "memory_bytes": 2**34} for index in range(4)]
EPOCH_SAMPLES = 50_000


def results_of(*records: Record, studies: Sequence[Study] = (), **fields: Any) -> Results:
    """Return what the pages about the first record's machine are made from."""
    machine = records[0].infrastructure if records else ""
    return Results(build(*records, studies=studies), studies, machine, **fields)


def on_gpus(rate: float, devices: int = 1, minute: int = 0, batch: int = 128, **changes: Any) -> Record:
    """Return a burst of 6 x 50,000 samples on GPUs at `rate`; the first pass is 1.5 times as slow as the others."""
    run = {"kind": "gpu", "devices": devices, "batch_per_device": batch, "global_batch": batch * devices}
    run.update(recipe="scaling", seconds=60.0, evaluate=False, learning_rate=0.05 * devices * batch / 128)
    run.update(changes.pop("run", {}))
    fields: dict[str, Any] = {"hardware": {**TEST_CPU, "gpus": GPUS, "driver": "550.54"}, "accuracies": ()}
    fields.update(started=f"2026-11-21T{10 + minute // 60}:{minute % 60:02}:00+00:00", **changes)
    passes = len(fields["accuracies"]) or 6
    seconds = EPOCH_SAMPLES / rate
    record = record_of(run=run, epoch_seconds=[seconds * 1.5, *[seconds] * (passes - 1)], **fields)
    return replace(record, windows=tuple(replace(each, samples=EPOCH_SAMPLES, waited=0.0) for each in record.windows))


def trained(rate: float, last: float, reached: int | None = None, **changes: Any) -> Record:
    """Return a training of 12 epochs with this accuracy at its end, and 0.76 from the epoch `reached` on."""
    curve = [0.76 if reached and epoch >= reached else 0.3 for epoch in range(1, 12)]
    run = {"recipe": "core.py", "seconds": None, "evaluate": True, "epochs": 12, "steps": 120, **changes.pop("run", {})}
    return on_gpus(rate, accuracies=[*curve, last], run=run, **{"minute": 200, **changes})


def tables(page: str | Sequence[Block]) -> dict[str, list[Lines]]:
    """Return the tables under each heading, as lines by column; markup and escapes are removed from cells."""
    text = page if isinstance(page, str) else "\n" + "\n\n".join(map(str, page))
    sections: dict[str, list[Lines]] = {}
    for part in text.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        for block in re.findall(r"(?:^\|.*\n?)+", body, re.MULTILINE):
            head, _, *lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
            assert {len(line) for line in lines} == {len(head)}, (title, head)
            cells = [[plain(cell) for cell in line] for line in (head, *lines)]
            sections.setdefault(title, []).append([dict(zip(cells[0], line)) for line in cells[1:]])
    return sections


def plain(cell: str) -> str:
    """Return the text that a reader sees in a cell."""
    return re.sub(r"\\(.)|\*\*|`", r"\1", re.sub(r"\[(.+?)\]\([^)]+\)", r"\1", cell.strip()))


def number(cell: str) -> float:
    """Return the first number in a cell."""
    return float(re.findall(r"-?[\d,]*\.?\d+(?:e-?\d+)?", cell)[0].replace(",", ""))


def check(path: Path) -> None:
    """Check that a page is complete, its tables fit, its links lead somewhere, and no number is impossible."""
    page, name = path.read_text(), path.name
    assert not re.search(BROKEN, page, re.MULTILINE), name
    # A study's own name of a machine is "1*".
    assert name == "studies.md" or not re.search(FOOTNOTE, page.replace("**", "")), name
    for section in page.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        assert (bool(title.strip()), bool(body.strip())) == (True, True), (name, title)
    for title, section_tables in tables(page).items():
        for lines in section_tables:
            assert len(lines[0]) <= 8, (name, title, list(lines[0]))
            assert narrowest(lines) <= WIDTH, (name, title, narrowest(lines))
            is_per_run = name in ("method.md", "scaling.md", "settings.md", "learning_rate.md")
            assert is_per_run or len({tuple(line.values()) for line in lines}) == len(lines), (name, title)
            for line in lines:
                _check_line(line, name, title)
    links = [link for link in re.findall(r"\]\(([^)]+)\)", page) if not link.startswith("http")]
    assert all((path.parent / link).is_file() for link in links), (name, links)
    assert not re.search(r"\]\[", page), name


def _check_line(line: dict[str, str], *place: str) -> None:
    for column, cell in line.items():
        assert column, place
        if not re.match(r"[≤$]* ?[-+]?[\d.,]", cell):
            continue
        figure = number(cell)
        assert figure >= 0 or column.startswith("change"), (place, column, line)
        assert "accuracy" not in column or abs(figure) <= 1, (place, column, line)
        if "%" in cell and "efficiency" in column:
            assert max(float(share) for share in re.findall(r"(\d+)%", cell)) <= 130, (place, column, line)


@functools.cache
def font(weight: str) -> Any:
    """Return DejaVu Sans, in which figures are drawn."""
    path = font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight=weight))
    return ImageFont.truetype(path, 16)


@functools.cache
def width(text: str, weight: str = "normal") -> float:
    """Return the pixels of the longest part of a text that no browser breaks."""
    return LETTERS * max(font(weight).getlength(part) for part in re.split(r"(?<=[-–])|\s", text))


def narrowest(lines: Lines) -> float:
    """Return the pixels to which a table can be narrowed by breaking the text in its cells."""
    return sum(max(width(name, "bold"), *(width(line[name]) for line in lines)) + PADDING for name in lines[0])
