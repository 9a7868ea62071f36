"""What the studies printed, a line a series, beside what this suite measured for the same network and batch."""

from __future__ import annotations

from collections.abc import Sequence

from poc.report import compare
from poc.report.measurements import Measurement, grouped
from poc.report.page import Results, Section
from poc.report.tables import machine_of, markdown, network_label, network_of, rate_of, rounded, short_machine
from poc.studies import Study
from poc.studies.row import Row

_SERIES = ("machine", "hardware", "framework", "model", "dataset", "layout")
_FIGURES = ("samples/s, one", "samples/s, all", "efficiency", "best accuracy")


def sections(results: Results) -> list[Section]:
    """A section for each study."""

    def comparable(row: Row) -> bool:
        alone = row.devices == 1 and row.cores_per_worker is None
        return bool(alone and row.dtype == "float32" and results.is_usual(row))

    alone = results.speeds(comparable)
    return [_section(results, study, alone) for study in results.studies]


def _section(results: Results, study: Study, alone: Sequence[Measurement]) -> Section:
    rows = [row for row in results.rows if row.study == study.name and not row.measured]
    several = len({row.framework for row in rows}) > 1
    groups = grouped(
        rows, lambda row: (*(getattr(row, name) for name in _SERIES), row.scaling == compare.STRONG, row.held_fixed)
    )
    lines = [_line(group, alone, several) for group in groups.values()]
    told = [line for line in lines if any(line[title] for title in _FIGURES)]
    source = ", ".join(filter(None, [study.authors, study.year]))
    linked = f"[{study.title or study.name}]({study.address})" if study.address else study.title or study.name
    about = (
        f"{linked}{': ' + source if source else ''}{' (' + study.about + ')' if study.about else ''}. {len(rows)} "
        "rows, a line for those that differ only in devices, rate and exchange: the best speed and efficiency on most "
        "devices, and the best accuracy on any number. Doubtful figures are left out."
    )
    flagged = [f"- {machine_of(row)}, {row.printed.split(' | ')[0]}: {row.flag}." for row in rows if row.flag]
    doubtful = "Its own figures disagree, as found by recomputing them:\n\n" + "\n".join(dict.fromkeys(flagged))
    blocks = [about, markdown(told), doubtful if flagged else ""]
    return Section(study.title.split(":")[0] or study.name, list(filter(None, blocks)))


def _line(group: Sequence[Row], alone: Sequence[Measurement], several: bool) -> dict[str, str]:
    sound = [row for row in group if not row.doubtful("samples_per_second", "devices")]
    first, last = group[0], max(sound, key=lambda row: (row.devices or 0, compare.rate(row) or 0.0), default=Row())
    held, many = first.held_fixed, (last.devices or 0) > 1
    one = next((row for row in sound if (row.devices or 0) <= 1), None)
    accuracies = [row.accuracy for row in group if row.accuracy is not None and not row.doubtful("accuracy")]
    at_most = [row for row in sound if row.devices == last.devices]
    efficiencies = [share for row in at_most for share in (row.efficiency_throughput, row.efficiency_wall) if share]
    setting = network_of(first), held
    # They begin with those of the machine at hand.
    own = next((taken for taken in alone if (taken.row.model, taken.row.batch_per_device) == setting), None)
    return {
        "machine": machine_of(first),
        "network": ", ".join(filter(None, [network_label(network_of(first)), first.layout])),
        "engine": first.framework.split(", ")[-1].replace("Keras + TensorFlow", "Keras") if several else "",
        "batch": f"{held}{' in all' if first.scaling == compare.STRONG else ''}" if held else "",
        "samples/s, one": rounded(compare.rate(one) if one else None),
        "devices": f"{last.devices}" if many else "",
        "samples/s, all": rounded(compare.rate(last)) if many else "",
        "efficiency": f"{max(efficiencies):.2f}" if efficiencies and many else "",
        "best accuracy": f"{max(accuracies):.3f}" if accuracies else "",
        "measured, one": f"{rate_of(own)}, {short_machine(own.row)}" if own else "",
    }
