"""What the gradient noise scale foretells of epochs and rates, beside what runs and others' printed numbers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median, median_low

from poc.recipe import CIFAR10
from poc.records import noise
from poc.records.record import COMPLETED, Record
from poc.report.measurements import CLOSED, division, grouped
from poc.report.page import MAIN_EPOCHS, MAIN_NETWORK, Results, Section
from poc.report.sections.rates import published_trainings, way
from poc.report.tables import markdown, network_label, rounded
from poc.run import Run
from poc.values import value

_STEP = 20
"""Accuracies are compared at whole twentieths."""
_LOWER = 0.1
"""What the second accuracy at which a noise scale is fitted lies below the first."""
MCCANDLISH = "https://arxiv.org/abs/1812.06162"
SHALLUE = "https://arxiv.org/abs/1811.03600"
READ_IN = {
    MCCANDLISH: "https://github.com/dmarx/nucleation/blob/66ecda0a84114412974250aef6d53788c8bd48d6/record/notes.d/"
    "NOTE-293.md",
    SHALLUE: "https://github.com/dmarx/anthology-of-the-sota/blob/0b1bcb13b13a37f631fad43934baadc65cd46744/record/"
    "literature.d/LIT-058.md",
}
"""Transcriptions in which the papers' numbers were read; the papers themselves were not at hand."""
_OVER_ALL = {"who": "Shallue et al. 2018", "network": "35 workloads", "optimizer": "SGD, three kinds"}
PUBLISHED = (
    {
        "who": "McCandlish et al. 2018",
        "network": "on CIFAR-10 (Table 1)",
        "over": "mean of a run",
        "noise scale (90%)": "2,000",
        "batch that fits": "900",
    },
    {**_OVER_ALL, "over": "halving ends", "batch that fits": "16 to 8,192"},
    {**_OVER_ALL, "over": "all gain ends", "batch that fits": "about 512 to 65,536"},
)


@value
class _Series:
    """Runs that differ only in total batch, devices and rate (and in precision and machine), by total batch."""

    run: Run
    by_batch: dict[int, list[Record]]

    @property
    def common(self) -> float:
        """The highest whole twentieth of accuracy that at every batch the runs at some rate reach, most of them."""
        best = [max(map(_reached, self.at_rates(batch))) for batch in self.by_batch]
        return int(min(best) * _STEP + 1e-9) / _STEP

    def at_rates(self, batch: int) -> list[list[Record]]:
        """The runs at that total batch, for each rate the last one of each seed, which learns the same again."""
        rates = grouped(self.by_batch[batch], lambda one: one.run.learning_rate).values()
        return [list({one.run.seed: one for one in runs}.values()) for runs in rates]

    def fastest(self, accuracy: float) -> dict[int, tuple[float, list[Record]]]:
        """By total batch the fewest epochs to an accuracy at any rate, the median of its runs, and these."""
        found = {}
        for batch in self.by_batch:
            needed = [(median(_epochs_to(one, accuracy) for one in runs), runs) for runs in self.at_rates(batch)]
            found[batch] = min(needed, key=lambda one: one[0])
        return found

    def noise(self, accuracy: float) -> tuple[float, str] | None:
        """The noise scale up to an accuracy, at the smallest batch that looked at it, and its interval in words."""
        for needed, runs in self.fastest(accuracy).values():
            share = needed / self.run.epochs
            looks = [(one.noise(0, share), one) for one in runs]
            looked = {found.scale: one for found, one in looks if found and found.scale is not None}
            if looked:
                scale = median_low(looked)
                low, high = looked[scale].noise_interval(0, share) or (None, None)
                return scale, f"{rounded(low, 2)} to {rounded(high, 2) or 'no end seen'}"
        return None


def epochs(results: Results) -> Section:
    """The epochs that each total batch needed to one accuracy, beside what the noise scale foretells."""
    lines, errors = [], []
    for series in _series(results):
        fastest = series.fastest(series.common)
        known = series.noise(series.common)
        if not known:
            continue
        first, (fewest, _) = next(iter(fastest.items()))
        factors = []
        for batch, (needed, runs) in fastest.items():
            times = noise.epochs_at(batch, known[0]) / noise.epochs_at(first, known[0])
            if batch != first:
                factors.append(needed / fewest / times)
            lines.append(
                {
                    "network": network_label(series.run.model),
                    "optimizer": series.run.optimizer.label,
                    "accuracy": f"{series.common:.2f}",
                    "total batch": f"{batch:,}",
                    "rate": f"{runs[0].run.learning_rate:g}",
                    "epochs": f"{needed:.1f}" + f" (n={len(runs)})" * (len(runs) > 1),
                    "of the first": f"{needed / fewest:.2f}",
                    "foretold": f"{times:.2f}",
                    "measured / foretold": f"{factors[-1]:.2f}" if batch != first else "",
                }
            )
        errors.append(f"{series.run.optimizer.label} {min(factors):.2f} to {max(factors):.2f}")
    about = (
        "Epochs to the highest whole twentieth of accuracy that every total batch of a series reaches, at the "
        "fastest rate tried there, on a straight line between evaluations, the median over seeds (one unless n says "
        "otherwise); foretold: 1 + B/N over the same at the smallest batch, N the noise scale up to that accuracy at "
        "the smallest batch that looked at it. A series is one way of training at three total batches or more, one of "
        "which looked at the noise; precision and machine may differ. "
        "Where rates decay they do so over the same epochs at every batch, which brings the batches nearer to each "
        "other. "
        f"Measured over foretold: {'; '.join(errors) or 'nothing to compare'}."
    )
    return Section("Epochs that the noise scale foretells", (about, markdown(lines)))


def rates(results: Results) -> Section:
    """The best learning rate at each total batch, beside what the noise scale foretells of it."""
    lines = []
    for series in _series(results):
        known, label = series.noise(series.common), series.run.optimizer.label
        if not known:
            continue
        tried = {
            batch: [
                (median(one.evaluations[-1].accuracy for one in runs), runs[0].run.learning_rate)
                for runs in series.at_rates(batch)
            ]
            for batch in series.by_batch
        }
        lines += _rates(label, tried, known[0], sized_by_gradient=series.run.optimizer.sized_by_gradient)
        if (series.run.model, series.run.epochs, division(series.run)) == (MAIN_NETWORK, MAIN_EPOCHS, CLOSED):
            printed = [taken.row for taken in published_trainings(results)]
            of_batch = sorted(grouped(printed, lambda row: row.global_batch).items())
            pairs = {batch: [(row.accuracy, row.lr) for row in rows] for batch, rows in of_batch}
            lines += _rates(f"{label}, published", pairs, known[0]) if pairs else []
    about = (
        "The most accurate rate at each total batch, by the median over seeds, and what 1 / (1 + N/B) gives from that "
        "of the smallest batch (its root for Muon, whose updates are not sized by the gradient), where several rates "
        "were tried. Published: the main study's rates at any division of a batch, with this project's N."
    )
    return Section("Rates that the noise scale foretells", (about, markdown(lines)))


def beside_published(results: Results) -> Section:
    """The noise scale and the one that fits the epochs, beside what two papers printed."""
    lines = []
    for series in _series(results):
        for accuracy in (series.common - _LOWER, series.common):
            known = series.noise(accuracy)
            fits = noise.fitted({batch: needed for batch, (needed, _) in series.fastest(accuracy).items()})
            lines.append(
                {
                    "who": "here",
                    "network": network_label(series.run.model),
                    "optimizer": series.run.optimizer.label,
                    "over": f"to {accuracy:.2f}",
                    "noise scale (90%)": f"{rounded(known[0], 2)} ({known[1]})" if known else "not measured",
                    "batch that fits": rounded(fits, 2) or "none",
                }
            )
    if not lines:
        return Section("The noise scale beside published ones", ())
    about = (
        "The batch that fits is the N with which 1 + B/N is nearest to the epochs measured: the critical batch size "
        f"of [McCandlish et al.]({MCCANDLISH}), who found the noise scale to be of its order of magnitude, to losses "
        "in training where this is accuracy on the test set. "
        f"[Shallue et al.]({SHALLUE}) give the batches from which doubling no longer halves the steps, or saves "
        "none, over all that they trained; of their ResNet-8 on CIFAR-10, which they draw, no number was found. What "
        f"both printed was read in transcriptions ([first]({READ_IN[MCCANDLISH]}), [second]({READ_IN[SHALLUE]})), "
        "not in the papers."
    )
    return Section(
        "The noise scale beside published ones",
        (about, markdown([*lines, *({**dict.fromkeys(lines[0], ""), **line} for line in PUBLISHED)])),
    )


def _rates(
    label: str, tried: dict[int, list[tuple[float, float]]], scale: float, *, sized_by_gradient: bool = True
) -> list[dict[str, str]]:
    """Lines of a series, from each accuracy and its rate at each total batch."""
    (first, found), *others = tried.items()
    _, start = max(found)
    at_first = noise.rate_at(first, scale, sized_by_gradient=sized_by_gradient)
    lines = []
    for batch, pairs in others:
        accuracy, best = max(pairs)
        rate = start * noise.rate_at(batch, scale, sized_by_gradient=sized_by_gradient) / at_first
        sought = sorted({one for _, one in pairs})
        if len(sought) < 2:
            continue
        lines.append(
            {
                "rates of": label,
                "total batch": f"{batch:,}",
                "tried": f"{sought[0]:g} to {sought[-1]:g} ({len(sought)})",
                "best (accuracy)": f"{best:g} ({accuracy:.3f})",
                "from": f"{start:g} at {first:,}",
                "foretold": f"{rate:.2g}",
                "best / foretold": f"{best / rate:.2f}",
            }
        )
    return lines


def _series(results: Results) -> Sequence[_Series]:
    """All series of three total batches or more, at each of which something was learned."""
    trained = [record for record in results.records if _fits(record)]
    found = []
    for runs in grouped(trained, lambda one: (one.data_id, one.run.model, one.run.epochs, way(one.run))).values():
        by_batch = dict(sorted(grouped(runs, lambda one: one.run.global_batch).items()))
        made = _Series(run=runs[0].run, by_batch=by_batch)
        if len(by_batch) > 2 and made.common - _LOWER > _guess(made.run):
            found.append(made)
    return found


def _fits(record: Record) -> bool:
    run = record.run
    return (
        record.outcome == COMPLETED
        and bool(record.evaluations)
        and isinstance(run.data, CIFAR10)
        and record.dataset != "synthetic"
        and run.whole_epochs
        and not run.quick
        and not run.searches
        and not (run.synchronises and run.kvstore.name != "device")
    )


def _reached(runs: Sequence[Record]) -> float:
    """The accuracy that most of them reach."""
    return median_low(max(seen.accuracy for seen in one.evaluations) for one in runs)


def _epochs_to(record: Record, accuracy: float) -> float:
    """Epochs until an accuracy, on a straight line between evaluations, the first from a guess; infinite if it is not
    reached.
    """
    before, known = 0.0, _guess(record.run)
    for seen in record.evaluations:
        if seen.accuracy >= accuracy:
            return before + (seen.epoch - before) * (accuracy - known) / (seen.accuracy - known)
        before, known = seen.epoch, seen.accuracy
    return math.inf


def _guess(run: Run) -> float:
    return 1 / run.data.classes
