"""A plan summed up for a person: runs, time and cost of each recipe, and what is skipped by reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from poc.run.progress import counted, duration
from poc.run.schedule import DoneRepeats, Item, RuntimeEstimator
from poc.values import value

_MOST_REASONS = 5
# A number that stands by itself: not a part of a name or a version.
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-]|\.\d)")


@value
class Line:
    """One run of the plan."""

    recipe: str
    id: str
    run: str  # its settings in words
    global_batch: int
    seconds: float  # expected
    done: bool
    skipped: str  # why it does not run on this machine; else empty
    framework: str  # its name, and why it was chosen


@value
class Totals:
    """The runs of one recipe; a run of two recipes counts with the first."""

    recipe: str
    runs: int
    done: int
    seconds: float  # of the runs that are not done yet


@value
class Workload:
    """The runs of the chosen recipes on this machine."""

    recipes: tuple[Totals, ...]
    runs: int
    done: int
    seconds: float
    dollars: float | None  # None if no price is known
    price_per_hour: float | None
    skipped: dict[str, int]  # number of runs by reason

    def __str__(self) -> str:
        """Return a table with a line per recipe, the cost of all, and the skipped runs by reason."""
        rows = [[each.recipe, f"{each.runs:,}", f"{each.done:,}", duration(each.seconds)] for each in self.recipes]
        if len(rows) != 1:
            rows.append(["total", f"{self.runs:,}", f"{self.done:,}", duration(self.seconds)])
        headers = ["recipe", "runs", "done", "time left"]
        table = tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 3))
        cost = f"{counted(self.runs - self.done, 'run')} to do: about {duration(self.seconds)}"
        if self.dollars is None:
            cost += " (price not known: --price DOLLARS)"
        else:
            cost += f", about ${self.dollars:.2f} at ${self.price_per_hour:.2f} per hour"
        return "\n".join([table, cost, *self._reasons()])

    def _reasons(self) -> list[str]:
        if not self.skipped:
            return []
        rows = list(self.skipped.items())
        if len(rows) > _MOST_REASONS:
            rest = sum(count for _, count in rows[_MOST_REASONS - 1 :])
            rows[_MOST_REASONS - 1 :] = [("other reasons (plan --verbose)", rest)]
        width = max(len(f"{count:,}") for _, count in rows)
        title = f"Skipped, {counted(sum(self.skipped.values()), 'run')}:"
        return [title, *(f"  {count:>{width},}  {reason}" for reason, count in rows)]


def lines(items: Iterable[Item], repeats: DoneRepeats, estimator: RuntimeEstimator) -> list[Line]:
    """Return a line for each run, in the order of `items`."""
    return [
        Line(
            recipe=recipe,
            id=planned.run.id,
            run=str(planned),
            global_batch=planned.run.global_batch,
            seconds=estimator.seconds(planned),
            done=not planned.skip and repeats.over(planned),
            skipped=planned.skip,
            framework=f"{planned.run.framework}: {planned.engine_choice}" if planned.engine_choice else "",
        )
        for recipe, _, planned in items
    ]


def listed(lines: Iterable[Line]) -> str:
    """Return a table of all runs of each recipe."""
    headers = ["id", "run", "global batch", "time, or why skipped"]
    blocks = []
    for recipe, runs in _by_recipe(lines).items():
        rows = []
        for line in runs:
            time = "done" if line.done else duration(line.seconds)
            rows.append([line.id, line.run, line.global_batch, f"skipped: {line.skipped}" if line.skipped else time])
        frameworks = sorted({line.framework for line in runs} - {""})
        table = tabulate(rows, headers=headers, disable_numparse=True)
        blocks.append("\n".join([recipe, table, *(f"framework {choice}" for choice in frameworks)]))
    return "\n\n".join(blocks)


def _by_recipe(lines: Iterable[Line]) -> dict[str, list[Line]]:
    groups: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        groups[line.recipe].append(line)
    return groups


def summed_up(lines: Sequence[Line], skipped: dict[str, int], price: float | None) -> Workload:
    """Sum up the plan; `price` is in dollars per hour."""
    distinct: dict[tuple[str, str], Line] = {}
    for line in lines:
        if not line.skipped:
            distinct.setdefault((line.id, line.run), line)
    recipes = tuple(
        Totals(
            recipe=recipe,
            runs=len(runs),
            done=sum(line.done for line in runs),
            seconds=sum(line.seconds for line in runs if not line.done),
        )
        for recipe, runs in _by_recipe(distinct.values()).items()
    )
    seconds = sum(each.seconds for each in recipes)
    return Workload(
        recipes=recipes,
        runs=sum(each.runs for each in recipes),
        done=sum(each.done for each in recipes),
        seconds=seconds,
        dollars=None if price is None else seconds / 3600 * price,
        price_per_hour=price,
        skipped=skipped,
    )


def skipped(items: Iterable[Item]) -> dict[str, int]:
    """Count the skipped runs by reason, the most frequent first; reasons that differ only in numbers are one."""
    planned = [item.planned for item in items]
    running = {item.run.id for item in planned if not item.skip}
    reasons = {item.run.id: item.skip for item in planned if item.skip and item.run.id not in running}
    numbers_by_text: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for reason in reasons.values():
        numbers_by_text[tuple(_NUMBER.split(reason))].append(_NUMBER.findall(reason))
    counts = {_with_ranges(texts, numbers): len(numbers) for texts, numbers in numbers_by_text.items()}
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _with_ranges(texts: Sequence[str], numbers: Sequence[Sequence[str]]) -> str:
    """Put the numbers of all reasons between their common words: "needs 2 to 8 GPUs"."""
    ranges = []
    for column in zip(*numbers):
        low, high = min(column, key=float), max(column, key=float)
        ranges.append(low if low == high else f"{low} to {high}")
    return "".join(part for pair in zip(texts, [*ranges, ""]) for part in pair)
