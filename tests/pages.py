"""Pages as tests read them: their tables, and what holds for every page."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from PIL import ImageFont

Lines = list[dict[str, str]]
WIDTH, PADDING = 880.0, 27.0
"""Pixels of a page on GitHub, and of a cell beside its text."""
LETTERS = 0.88
"""Width of Helvetica's letters, as GitHub shows them, over that of DejaVu Sans."""
BROKEN = r"\b(?<!loss was )(None|nan|NaN|inf|Infinity)\b|<NA>|\(\)|\( |, ,|\*\*\*\*|\| ,| [.;:]( |$)"
FOOTNOTE = r"[\d)%][*†‡§]"


def tables(page: str) -> dict[str, list[Lines]]:
    """Return the tables under each heading, as lines by column; markup and escapes are removed from cells."""
    sections: dict[str, list[Lines]] = {}
    for part in page.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        for block in re.findall(r"(?:^\|.*\n?)+", body, re.MULTILINE):
            head, _, *lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
            assert {len(line) for line in lines} == {len(head)}, (title, head)
            cells = [[plain(cell) for cell in line] for line in (head, *lines)]
            sections.setdefault(title, []).append([dict(zip(cells[0], line)) for line in cells[1:]])
    return sections


def plain(cell: str) -> str:
    """Return the text that a reader sees in a cell."""
    cell = re.sub(r"\[(.+?)\]\([^)]+\)", r"\1", cell.strip()).replace("**", "").replace("`", "")
    return cell.replace("\\|", "|")


def number(cell: str) -> float:
    """Return the first number in a cell."""
    return float(re.findall(r"-?[\d,]*\.?\d+(?:e-?\d+)?", cell)[0].replace(",", ""))


def check(path: Path) -> None:
    """Check that a page is whole, its tables fit, its links lead somewhere, and no number is impossible."""
    page, name = path.read_text(), path.name
    assert not re.search(BROKEN, page, re.MULTILINE), name
    # A study's own name of a machine is "1*".
    assert name == "studies.md" or not re.search(FOOTNOTE, page.replace("**", "")), name
    for section in page.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        assert title.strip(), name
        assert body.strip(), (name, title)
    for title, found in tables(page).items():
        for lines in found:
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
    """Return DejaVu Sans, which figures are drawn with."""
    path = font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight=weight))
    return ImageFont.truetype(path, 16)


@functools.cache
def width(text: str, weight: str = "normal") -> float:
    """Return the pixels of the longest part of a text that no browser breaks."""
    return LETTERS * max(font(weight).getlength(part) for part in re.split(r"(?<=[-–])|\s", text))


def narrowest(lines: Lines) -> float:
    """Return the pixels to which a table can be narrowed by breaking the text in its cells."""
    return sum(max(width(name, "bold"), *(width(line[name]) for line in lines)) + PADDING for name in lines[0])
