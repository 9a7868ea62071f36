"""What five earlier studies printed, as data: one CSV a study, all in the same columns.

A cell holds a figure as its source printed it (percentages as fractions of one, hours as seconds), and is
empty where the source is silent. Three things were added, and only these: a batch size per device or in
total, where the other one and the number of devices are known; what the main study's script ran by default
(input, exchange, learning rate); and the number of parameters of its ResNet-50, counted from that script's
network.

`printed` is the source's own text that finds the row again, `note` what the source says beside its figures,
`scaling` what its series over devices held fixed: the batch per device (`weak`) or the total batch
(`strong`). `devices` is 0 for a CPU. The Theano study's seconds for 5,120 images are those of all devices
together, so they fall as devices are added.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from poc.values import UserError

STUDIES = ("beeva_poc_mxnet", "theano_mpi", "keras_multi_gpu", "hacksa_horovod", "pmls_caffe")

TEXT_COLUMNS = (
    "study",
    "infrastructure",
    "hardware",
    "framework",
    "network",
    "dataset",
    "input_shape",
    "exchange",
    "layout",
    "scaling",
    "note",
    "printed",
)
COUNT_COLUMNS = ("parameters", "batch_per_device", "total_batch", "devices", "epochs")
MEASURE_COLUMNS = (
    *("learning_rate", "accuracy", "seconds_per_epoch", "samples_per_second", "utilisation"),
    *("train_seconds_per_5120", "communication_seconds_per_5120", "sync_seconds_per_5120"),
    *("speedup_throughput", "speedup_wall", "efficiency_throughput", "efficiency_wall"),
)
_COUNT = re.compile(r"[0-9]{1,12}")
_MEASURE = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")

CIFAR10_TRAINING_IMAGES = 50_000
EPOCH_TOLERANCE = 0.05

SERIES = ("study", "infrastructure", "framework", "network", "dataset", "input_shape", "layout", "scaling")


def load(folder: Path = Path(__file__).parent) -> pd.DataFrame:
    """Every row of every study in `folder`, the main study first, each in the order of its source.

    Text columns are strings, empty where unknown; counts are `Int64` and measures `float64`, missing where
    unknown. Units: seconds, samples per second, fractions of one. Added to the columns of the files:
    `origin`, always "published", and `flag`, what `contradictions` finds in the row.

    Raises UserError where a file is missing, is no such CSV, or has something else where a number belongs.
    """
    printed = pd.concat([_read(folder / f"{study}.csv") for study in STUDIES], ignore_index=True)
    return _as_numbers(printed).assign(origin="published", flag=contradictions(printed))


def _read(path: Path) -> pd.DataFrame:
    """The cells of one file, as text. Raises UserError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *lines = csv.reader(file, strict=True)
    except (OSError, ValueError, csv.Error) as error:  # of ValueError: no header, or bytes that are no text
        reason = " ".join(str(error).split())
        raise UserError(f"published: {path} cannot be read ({reason}); put back the one that came with this") from None
    columns = (*TEXT_COLUMNS, *COUNT_COLUMNS, *MEASURE_COLUMNS)
    if sorted(header) != sorted(columns):
        raise UserError(f"published: {path} has other columns than {', '.join(columns)}; put them back")
    for number, cells in enumerate(lines, start=2):
        if len(cells) != len(header):
            raise UserError(f"published: {path}, row {number} has {len(cells)} cells, the header {len(header)}")
        for name, cell in zip(header, cells):
            kind = None if name in TEXT_COLUMNS else _COUNT if name in COUNT_COLUMNS else _MEASURE
            if cell and kind and not kind.fullmatch(cell):
                raise UserError(
                    f"published: {path}, row {number}: {name} is {cell[:40]!r}; give a number as the source prints it, "
                    "or nothing"
                )
    return pd.DataFrame(lines, columns=header, dtype=str)


def contradictions(printed: pd.DataFrame) -> pd.Series:
    """What disagrees within each row, or between it and its series on one device; empty where nothing does.

    `printed` has the columns of the files, as text, because how many digits a source printed says how far its
    figures can be trusted: each may be off by one unit of its last digit (rounded or cut off). The zeros that
    an integer ends in are not digits, but for its first two: 2600 is trusted to 100, 10000 to 1000. Beyond
    that, these must agree:

    - samples/s and, on CIFAR-10, 50,000 images / seconds per epoch, where 5% more is let pass: the one is a
      rate read off in mid-epoch, the other has the epoch's beginning and end in it;
    - the number of devices and the one in front of a utilisation in `printed`, as in "(8-80%)";
    - total batch and batch per device x devices;
    - a speed-up by throughput and the row's samples/s / those of its series on one device;
    - an efficiency and its speed-up / devices.
    """
    texts = printed.to_dict("records")
    rows = _as_numbers(printed).to_dict("records")
    on_one_device = {
        _series(row): text["samples_per_second"]
        for text, row in zip(texts, rows)
        if text["devices"] == "1" and text["scaling"] and text["samples_per_second"]
    }
    flags = ["; ".join(_disagreements(text, row, on_one_device)) for text, row in zip(texts, rows)]
    return pd.Series(flags, index=printed.index, dtype=object)


def speedups(frame: pd.DataFrame) -> pd.DataFrame:
    """Speed-ups of the Theano study, from its seconds for 5,120 images.

    `frame` is `load()`'s. Returns, under its index, a row for each of its rows that has training seconds:
    study, infrastructure, framework, network, batch_per_device, devices, printed, `speedup_without_sync`
    (training and communication, as the study has it) and `speedup_with_sync` (synchronisation too, which the
    study leaves out); missing where a series has no row on one device. The run without processor binding is a
    second row on eight devices, told apart by `printed`.
    """
    rows = frame[frame["train_seconds_per_5120"].notna()]
    without_sync = rows["train_seconds_per_5120"] + rows["communication_seconds_per_5120"].fillna(0.0)
    with_sync = without_sync + rows["sync_seconds_per_5120"].fillna(0.0)

    series = ["study", "infrastructure", "framework", "network", "batch_per_device"]
    result = rows[[*series, "devices", "printed"]].copy()
    keys = pd.MultiIndex.from_frame(rows[series])
    alone = (rows["devices"] == 1).to_numpy()
    for column, seconds in (("speedup_without_sync", without_sync), ("speedup_with_sync", with_sync)):
        one_device = pd.Series(seconds.to_numpy()[alone], index=keys[alone])
        result[column] = one_device.reindex(keys).to_numpy() / seconds.to_numpy()
    return result


def _as_numbers(printed: pd.DataFrame) -> pd.DataFrame:
    columns = {}
    for name in printed.columns:
        if name in TEXT_COLUMNS:
            columns[name] = printed[name]
        else:
            numbers = pd.to_numeric(printed[name].where(printed[name] != ""))
            columns[name] = numbers.astype("Int64" if name in COUNT_COLUMNS else "float64")
    return pd.DataFrame(columns)


def _series(row: dict[Hashable, Any]) -> tuple[Any, ...]:
    held_fixed = row["total_batch" if row["scaling"] == "strong" else "batch_per_device"]
    return (*(row[name] for name in SERIES), None if pd.isna(held_fixed) else held_fixed)


def _disagreements(
    text: dict[Hashable, Any], row: dict[Hashable, Any], on_one_device: dict[tuple[Any, ...], str]
) -> list[str]:
    def printed(*names: str) -> bool:
        return all(text[name] for name in names)

    found = []
    rate, devices = row["samples_per_second"], row["devices"]
    rate_unit = _last_digit(text["samples_per_second"])

    if row["dataset"] == "cifar10" and printed("seconds_per_epoch", "samples_per_second"):
        seconds = row["seconds_per_epoch"]
        implied = CIFAR10_TRAINING_IMAGES / seconds
        implied_unit = implied * _last_digit(text["seconds_per_epoch"]) / seconds
        if abs(implied - rate) > rate_unit + implied_unit + EPOCH_TOLERANCE * implied:
            found.append(f"{seconds:g} s an epoch is {implied:,.0f} samples/s, printed {rate:,.0f}")

    counted = re.search(r"\((\d+)-\d+%\)", text["printed"])
    if counted and printed("devices") and int(counted[1]) != devices:
        found.append(f"{devices} devices, but the utilisation is of {counted[1]}")

    if printed("total_batch", "batch_per_device", "devices"):
        total = row["batch_per_device"] * max(devices, 1)
        if total != row["total_batch"]:
            found.append(
                f"{row['batch_per_device']} a device x {devices} is a batch of {total}, printed {row['total_batch']}"
            )

    alone = on_one_device.get(_series(row))
    if alone and printed("speedup_throughput", "samples_per_second"):
        implied = rate / float(alone)
        implied_unit = (rate_unit + implied * _last_digit(alone)) / float(alone)
        if abs(implied - row["speedup_throughput"]) > _last_digit(text["speedup_throughput"]) + implied_unit:
            found.append(
                f"{rate:g} / {alone} samples/s is a speed-up of {implied:.2f}, printed {row['speedup_throughput']:g}"
            )

    for kind in ("throughput", "wall"):
        speedup, efficiency = f"speedup_{kind}", f"efficiency_{kind}"
        if printed(speedup, efficiency, "devices") and devices > 0:
            implied = row[speedup] / devices
            unit = _last_digit(text[efficiency]) + _last_digit(text[speedup]) / devices
            if abs(implied - row[efficiency]) > unit:
                found.append(
                    f"speed-up {row[speedup]:g} / {devices} devices is an efficiency of {implied:.3f}, "
                    f"printed {row[efficiency]:g}"
                )
    return found


def _last_digit(figure: str) -> float:
    """One unit of the last digit of a printed figure: 0.1 for "13.9", 100 for "2600", 1000 for "10000"."""
    whole, _, decimals = figure.partition(".")
    if decimals:
        return 10.0 ** -len(decimals)
    zeros = len(whole) - len(whole.rstrip("0"))
    return 10.0 ** max(min(zeros, len(whole) - 2), 0)
