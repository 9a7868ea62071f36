"""Prices of machines per hour: on-demand prices with date and source (prices.csv), and those that a user gives.

A machine is looked up by its name, or by a name in `known_as` (several are separated by `;`), as studies call it. The
price is that of the whole machine with all of its `devices`.
"""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from poc.values import Positive, UserError, checked, from_plain

FILE = Path(__file__).with_suffix(".csv")
GIVEN = "given by the user"


@dataclasses.dataclass(frozen=True)
class Price:
    machine: str
    dollars_per_hour: float
    devices: int | None = None  # GPUs of the whole machine; None if unknown
    region: str = ""
    date: str = ""  # day on which it was valid, in ISO 8601
    source: str = ""  # an address, or `GIVEN`


class Prices(dict[str, Price]):
    """Prices by the names of machines."""

    def of(self, machine: str, hardware: str = "") -> Price | None:
        """Return the price of a machine by its name, else by its hardware; None if neither is known."""
        return self.get(machine) or self.get(hardware)


def load(user_prices: Mapping[str, float]) -> Prices:
    """Return the prices of prices.csv, overridden by those of the user by name. Raises UserError."""
    prices = Prices()
    with FILE.open(newline="", encoding="utf-8") as file:
        for cells in csv.DictReader(file):
            names = [cells["machine"], *filter(None, map(str.strip, cells["known_as"].split(";")))]
            prices.update(dict.fromkeys(names, from_plain(Price, cells)))
    for name, dollars in user_prices.items():
        checked(f"--price {name}", dollars, Positive)
        devices = prices[name].devices if name in prices else None
        prices[name] = Price(machine=name, dollars_per_hour=float(dollars), devices=devices, source=GIVEN)
    return prices


def named(text: str) -> tuple[str, float]:
    """Parse an option NAME=DOLLARS; a name may contain "=". Raises UserError."""
    name, _, dollars = text.rpartition("=")
    try:
        return name.strip(), float(dollars if name.strip() else "none")
    except ValueError:
        raise UserError(f"--price: {text!r} is not allowed; use NAME=DOLLARS, e.g. p3.16xlarge=24.48") from None
