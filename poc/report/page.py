"""What a page is made of: sections of prose, tables and pictures; and the results that all of them draw on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Union

from matplotlib.figure import Figure

from poc.recipe import networks
from poc.records.record import Record
from poc.report.measurements import Measurement, by_accuracy, by_speed
from poc.report.rows import USUAL_ENGINE
from poc.report.tables import machine_of
from poc.studies import Study
from poc.studies.row import Row
from poc.values import value

MAIN_NETWORK = "cifar_resnet50_v2"
MAIN_EPOCHS = 12
MAIN_BATCH = 128
"""Network, epochs and batch per device of the main study's reference setting."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    name: str
    """Of its file, without an ending."""
    caption: str
    """What it shows, and under which conditions."""
    figure: Figure


Block = Union[str, Picture]


@dataclass(frozen=True)
class Section:
    """One topic of a page; one without blocks, or with an empty one such as a table without lines, is left out."""

    title: str
    blocks: Sequence[Block]


@value
class Results:
    """All that the pages are made from."""

    rows: tuple[Row, ...]
    """Measured ones, in the order of `records`, and then those of studies in theirs."""
    records: tuple[Record, ...]
    studies: tuple[Study, ...]
    here: str
    """The machine at hand, which measured last, searches aside; empty where nothing was measured."""

    @property
    def full(self) -> list[Row]:
        """Rows but those of quick runs."""
        return [row for row in self.rows if not row.quick]

    def speeds(self, chosen: Callable[[Row], bool]) -> list[Measurement]:
        """The speeds of chosen measured rows, the machine at hand first; of real devices only."""
        real = [row for row in self.full if row.measured and row.samples_per_second and not row.emulated]
        return sorted(by_speed(filter(chosen, real)), key=lambda taken: self._order(taken.row))

    def accuracies(self, chosen: Callable[[Row], bool], *, searched: bool = False) -> list[Measurement]:
        """The accuracies of chosen measured rows, the machine at hand first; on real images only, of the test set.

        `searched`: those of images that a search held out.
        """
        known = [row for row in self.full if row.measured and row.accuracy is not None]
        real = [row for row in known if row.dataset != "synthetic" and row.run.searches == searched]
        return sorted(by_accuracy(filter(chosen, real)), key=lambda taken: self._order(taken.row))

    def record(self, taken: Measurement) -> Record | None:
        """Of its last take; None where it was published."""
        return next((record for row, record in zip(self.rows, self.records) if row is taken.rows[-1]), None)

    def name(self, row: Row) -> str:
        """The machine of a row in a table: bold where it is the one at hand, with its source where it is a study's."""
        if row.measured:
            return self.bold(row.machine)
        linked = any(study.address for study in self.studies if study.name == row.study)
        return f"[{machine_of(row)}][{row.study}]" if linked else machine_of(row)

    def bold(self, machine: str) -> str:
        """A machine's name, bold where it is the one at hand."""
        return f"**{machine}**" if machine == self.here else machine

    def is_here(self, row: Row) -> bool:
        """Whether it was measured on the machine at hand."""
        return row.measured and row.machine == self.here

    def is_usual(self, row: Row) -> bool:
        """Whether its engine is the one that stands for its machine: of several the first, MXNet."""
        at = row.machine, row.kind
        there = (one for one in self.full if one.measured and (one.machine, one.kind) == at)
        return row.run.framework == USUAL_ENGINE or all(one.run.framework != USUAL_ENGINE for one in there)

    def published(self, chosen: Callable[[Row], bool]) -> list[Measurement]:
        """Chosen rows of the main study."""
        main = self.studies[0].name if self.studies else ""
        return [Measurement((row,)) for row in self.rows if not row.measured and row.study == main and chosen(row)]

    def _order(self, row: Row) -> tuple[object, ...]:
        network = list(networks.NETWORKS).index(row.model) if row.model in networks.NETWORKS else -1
        size = (row.global_batch or 0, row.devices or 0, row.lr or 0.0)
        return (not self.is_here(row), row.machine, network, row.framework, row.dtype, *size)


Topic = Callable[[Results], Union[Section, "list[Section]"]]


@dataclass(frozen=True)
class Page:
    """A page: the name of its file without an ending, its title, and its topics in their order."""

    name: str
    title: str
    topics: Sequence[Topic]

    def sections(self, results: Results) -> list[Section]:
        """Those of its topics that have anything to show."""
        made = [topic(results) for topic in self.topics]
        flat = [section for one in made for section in (one if isinstance(one, list) else [one])]
        return [section for section in flat if section.blocks and all(section.blocks)]
