"""What machines cost an hour: on-demand prices, each with its date and source (prices.csv), and those a user gives.

A machine is found by its name there, or by what a study calls it (`known_as`, of `;` between several). A price is that
of the whole machine, with all of its `devices`; what a run that uses some of them costs is for the caller to say.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poc.values import Positive, UserError, checked, value

FILE = Path(__file__).with_suffix(".csv")


@value
class Price:
    """Of one machine."""

    machine: str
    dollars_per_hour: float
    devices: int | None = None
    """GPUs of the whole machine; None where that is not known."""
    region: str = ""
    date: str = ""
    """When it was that much, in ISO 8601."""
    source: str = ""
    """An address, or `GIVEN`."""
    note: str = ""


GIVEN = "given by the user"


@value
class Prices:
    """By the names of machines."""

    by_name: Mapping[str, Price]

    def of(self, infrastructure: str, hardware: str = "") -> Price | None:
        """The price of the machine that results call so; None where none is known."""
        return self.by_name.get(infrastructure) or self.by_name.get(hardware)


def load(given: Mapping[str, float]) -> Prices:
    """The prices of prices.csv, and those `given` for names of machines, which come first. Raises UserError."""
    by_name = {}
    with FILE.open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            names = [cells["machine"], *filter(None, map(str.strip, cells.pop("known_as").split(";")))]
            figures: dict[str, Any] = {**cells, "devices": int(cells["devices"])}
            figures["dollars_per_hour"] = float(cells["dollars_per_hour"])
            by_name.update(dict.fromkeys(names, Price(**figures)))
    for name, dollars in given.items():
        checked(f"--price {name}", dollars, Positive)
        devices = by_name[name].devices if name in by_name else None
        by_name[name] = Price(machine=name, dollars_per_hour=float(dollars), devices=devices, source=GIVEN)
    return Prices(by_name=by_name)


def named(text: str) -> tuple[str, float]:
    """The machine and its dollars an hour of an option NAME=DOLLARS; raises UserError."""
    name, _, dollars = text.rpartition("=")  # a name may have one, too
    try:
        return name.strip(), float(dollars if name.strip() else "none")
    except ValueError:
        raise UserError(f"--price: {text!r} is not allowed; use NAME=DOLLARS, e.g. p3.16xlarge=24.48") from None
