"""A plan summed up for a person: runs, time and cost of each recipe, and what is skipped by reason."""

from collections.abc import Iterable, Sequence
from typing import Any

from tabulate import tabulate

from poc.records.last_run import by_reason
from poc.run.progress import duration
from poc.values import counted, value

_MOST_REASONS = 5


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
    images: str = ""  # the key of its data set
    repeat: int = 1
    epochs: int = 0  # of a search for a learning rate, at most


def totals(lines: Iterable[Line]) -> dict[str, Any]:
    """Return the number of runs that are not skipped, of those that are done, and the seconds of the others."""
    runs = _distinct(lines)
    seconds = sum(line.seconds for line in runs if not line.done)
    return {"runs": len(runs), "done": sum(line.done for line in runs), "seconds": seconds}


def _distinct(lines: Iterable[Line]) -> list[Line]:
    """Return each run that is not skipped once; one of two recipes counts with the first."""
    runs: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        if not line.skipped:
            # A run's text has the rule of its learning rate, too, which recipes may differ in.
            runs.setdefault((line.id, line.images, line.repeat, line.epochs and line.run), line)
    return list(runs.values())


def summary(lines: Sequence[Line], price: float | None, price_option: str = "--price DOLLARS") -> str:
    """Return a table with a line per recipe, time and cost of all, and the skipped runs by reason.

    `price` is in dollars per hour; without one the summary names `price_option`.
    """
    runs, total = _distinct(lines), totals(lines)
    recipes = dict.fromkeys(line.recipe for line in runs)
    sums = [(recipe, totals(line for line in runs if line.recipe == recipe)) for recipe in recipes]
    if len(sums) != 1:
        sums.append(("total", total))
    rows = [[name, f"{each['runs']:,}", f"{each['done']:,}", duration(each["seconds"])] for name, each in sums]
    headers = ["recipe", "runs", "done", "time left"]
    if any(line.epochs for line in runs):
        headers.append("search epochs (max)")
        for row, each in zip(rows, [*recipes, None]):
            epochs = sum(line.epochs for line in runs if each in (line.recipe, None))
            row.append(f"{epochs:,}" if epochs else "")
    table = tabulate(rows, headers=headers, disable_numparse=True, colalign=["left", *["right"] * (len(headers) - 1)])
    cost = f"{counted(total['runs'] - total['done'], 'run')} to do: about {duration(total['seconds'])}"
    if price is None:
        cost += f" (cost unknown; price per hour: {price_option})"
    else:
        cost += f", about ${total['seconds'] / 3600 * price:.2f} at ${price:.2f} per hour"
    reasons = list(skipped(lines).items())
    if reasons:
        cost += f"\nSkipped: {counted(sum(count for _, count in reasons), 'run')}"
    if len(reasons) > _MOST_REASONS:
        rest = sum(count for _, count in reasons[_MOST_REASONS - 1 :])
        reasons[_MOST_REASONS - 1 :] = [("other reasons (plan --verbose)", rest)]
    return "\n".join([table, cost, *(f"{count:>6,}  {reason}" for reason, count in reasons)])


def listed(lines: Sequence[Line]) -> str:
    """Return a table of all runs, and why their frameworks were chosen."""
    rows = []
    for line in lines:
        time = f"skipped: {line.skipped}" if line.skipped else "done" if line.done else duration(line.seconds)
        rows.append([line.recipe, line.id, line.run, line.global_batch, time])
    headers = ["recipe", "id", "run", "global batch", "time, or why skipped"]
    choices = sorted({line.framework for line in lines} - {""})
    return "\n".join([tabulate(rows, headers=headers, disable_numparse=True), *choices])


def skipped(lines: Sequence[Line]) -> dict[str, int]:
    """Count the skipped runs by reason, the most frequent first."""
    running = {line.id for line in lines if not line.skipped}
    return by_reason({line.id: line.skipped for line in lines if line.id not in running}.values())
