"""A plan summed up for a person: runs, time and cost of each recipe, and what is skipped by reason."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from poc.plan import Planned
from poc.run.progress import counted, duration
from poc.run.schedule import DoneRepeats, Item, RuntimeEstimator
from poc.values import value

MOST_REASONS = 5
"""For skipped runs, in a summary."""
# One that stands by itself, and is no part of a name or a version.
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-]|\.\d)")


@value
class Line:
    """One run of the plan, for a list of all."""

    recipe: str
    id: str
    run: str
    """Its settings in words."""
    global_batch: int
    seconds: float
    """Expected."""
    done: bool
    """Whether the journal holds it already."""
    skipped: str
    """Why it does not run here; empty where it does."""
    framework: str
    """Which one, and why."""


def lines(items: Iterable[Item], done: DoneRepeats, pace: RuntimeEstimator) -> list[Line]:
    """Return a line for each run, in the order of `items`."""
    return [
        Line(
            recipe=name,
            id=item.run.id,
            run=str(item),
            global_batch=item.run.global_batch,
            seconds=pace.seconds(item),
            done=not item.skip and done.over(item),
            skipped=item.skip,
            framework=f"{item.run.framework}: {item.framework_choice}" if item.framework_choice else "",
        )
        for name, _, item in items
    ]


def listed(lines: Iterable[Line]) -> str:
    """Return a table of all runs of each recipe."""
    by_recipe: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_recipe[line.recipe].append(line)
    headers = ["id", "run", "global batch", "time, or why skipped"]
    blocks = []
    for name, own in by_recipe.items():
        rows = [[line.id, line.run, line.global_batch, _fate(line)] for line in own]
        frameworks = sorted({line.framework for line in own} - {""})
        table = tabulate(rows, headers=headers, disable_numparse=True)
        blocks.append("\n".join([name, table, *(f"framework {choice}" for choice in frameworks)]))
    return "\n\n".join(blocks)


def _fate(line: Line) -> str:
    if line.skipped:
        return f"skipped: {line.skipped}"
    return "done" if line.done else duration(line.seconds)


@value
class Totals:
    """What one recipe runs here."""

    recipe: str
    runs: int
    done: int
    seconds: float
    """Of what is not done yet."""


@value
class Workload:
    """What the chosen recipes run here, and what of it is skipped."""

    recipes: tuple[Totals, ...]
    """Those with a run; a run of two recipes counts with the first."""
    runs: int
    done: int
    seconds: float
    dollars: float | None
    """None where no price is known."""
    price_per_hour: float | None
    skipped: dict[str, int]
    """How many runs are skipped, by reason."""

    def __str__(self) -> str:
        """Return a table with a line per recipe, the cost of all, and the skipped runs by reason."""
        rows = [[each.recipe, f"{each.runs:,}", f"{each.done:,}", duration(each.seconds)] for each in self.recipes]
        if len(rows) != 1:
            rows.append(["total", f"{self.runs:,}", f"{self.done:,}", duration(self.seconds)])
        headers = ["recipe", "runs", "done", "time left"]
        table = tabulate(rows, headers=headers, disable_numparse=True, colalign=("left", *["right"] * 3))
        return "\n".join([table, self._cost(), *self._reasons()])

    def _cost(self) -> str:
        to_do = f"{counted(self.runs - self.done, 'run')} to do: about {duration(self.seconds)}"
        if self.dollars is None:
            return f"{to_do} (price not known: --price DOLLARS)"
        return f"{to_do}, about ${self.dollars:.2f} at ${self.price_per_hour:.2f} per hour"

    def _reasons(self) -> list[str]:
        if not self.skipped:
            return []
        shown = list(self.skipped.items())
        if len(shown) > MOST_REASONS:
            others = shown[MOST_REASONS - 1 :]
            shown = [*shown[: MOST_REASONS - 1], ("other reasons (plan --verbose)", sum(count for _, count in others))]
        width = max(len(f"{count:,}") for _, count in shown)
        skipped = counted(sum(self.skipped.values()), "run")
        return [f"Skipped, {skipped}:", *(f"  {count:>{width},}  {reason}" for reason, count in shown)]


def summed_up(items: Sequence[Item], done: DoneRepeats, pace: RuntimeEstimator, price: float | None) -> Workload:
    """Sum up what there is to do; `price` is in dollars per hour."""
    by_recipe: dict[str, list[Planned]] = {}
    seen: set[tuple[str, int]] = set()
    for name, _, item in items:
        own = by_recipe.setdefault(name, [])
        if not item.skip and (item.run.id, item.repeat) not in seen:
            own.append(item)
            seen.add((item.run.id, item.repeat))
    totals = []
    for name, own in by_recipe.items():
        left = [item for item in own if not done.over(item)]
        seconds = sum(map(pace.seconds, left))
        totals.append(Totals(recipe=name, runs=len(own), done=len(own) - len(left), seconds=seconds))
    seconds = sum(each.seconds for each in totals)
    return Workload(
        recipes=tuple(each for each in totals if each.runs),
        runs=sum(each.runs for each in totals),
        done=sum(each.done for each in totals),
        seconds=seconds,
        dollars=None if price is None else seconds / 3600 * price,
        price_per_hour=price,
        skipped=skipped(items),
    )


def skipped(items: Iterable[Item]) -> dict[str, int]:
    """Count the skipped runs by reason, the most frequent first; reasons that differ only in numbers are one."""
    planned = [item for *_, item in items]
    running = {item.run.id for item in planned if not item.skip}
    reasons = {item.run.id: item.skip for item in planned if item.skip and item.run.id not in running}
    alike: dict[tuple[str, ...], list[list[str]]] = defaultdict(list)
    for reason in reasons.values():
        alike[tuple(_NUMBER.split(reason))].append(_NUMBER.findall(reason))
    counts = {_with_ranges(words, numbers): len(numbers) for words, numbers in alike.items()}
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _with_ranges(words: Sequence[str], numbers: Sequence[Sequence[str]]) -> str:
    """Put the numbers of all reasons between their common words: "needs 2 to 8 GPUs"."""
    ranges = []
    for column in zip(*numbers):
        low, high = min(column, key=float), max(column, key=float)
        ranges.append(low if low == high else f"{low} to {high}")
    return "".join(part for pair in zip(words, [*ranges, ""]) for part in pair)
