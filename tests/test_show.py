"""`poc show`, for people and for programs: all repeats of a run, its curve, and the parts of its time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from poc.cli import show
from poc.published.prices import load
from poc.records.record import Record
from poc.records.timing import PARTS
from poc.report import table
from poc.values import UserError
from tests.builders import record_of


def repeats_of(*epoch_seconds: float, **run: Any) -> list[Record]:
    """Return one repeat per duration of an epoch, a day apart."""
    return [
        record_of(epoch_seconds=[seconds] * 6, run=run, started=f"2026-11-2{day}T10:00:00+00:00")
        for day, seconds in enumerate(epoch_seconds, start=1)
    ]


def shown(records: list[Record], start: str) -> tuple[str, dict[str, Any]]:
    built = table.build(records, [], load({}))
    return show.text(built, records, start), json.loads(show.text(built, records, start, as_json=True))


def test_a_run_is_shown_with_all_its_repeats() -> None:
    slow, fast = repeats_of(4.0, 5.0), repeats_of(2.0, learning_rate=0.4)
    elsewhere = record_of(epoch_seconds=[8.0] * 6, infrastructure="elsewhere", data_checksum="abcd")
    run_id = slow[0].run.id
    text, values = shown([*fast, *slow, elsewhere], run_id[:6])
    assert [rate in text for rate in ("320.0", "256.0", "160.0", "640.0")] == [True, True, True, False]
    assert [repeat["samples_per_second"] for repeat in values["repeats"]] == [160.0, 320.0, 256.0]
    assert values["run_id"] == run_id
    # The curve and the parts of the time are of the last repeat.
    assert [epoch["accuracy"] for epoch in values["epochs"]] == [0.5, 0.55, 0.6, 0.65, 0.7, 0.75]
    first = {"epoch": 1, "loss": 1.0, "accuracy": 0.5, "samples_per_second": 256.0, "seconds": 5.0}
    assert values["epochs"][0] == first
    assert set(values["seconds_by_part"]) == set(PARTS)
    assert sum(values["seconds_by_part"].values()) == pytest.approx(values["repeats"][-1]["wall_seconds"])
    _, values = shown([*fast, *slow, elsewhere], f"{run_id}@else")
    assert [repeat["samples_per_second"] for repeat in values["repeats"]] == [160.0]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "out of memory"])
def test_a_run_that_never_completed_has_its_reason(outcome: str) -> None:
    lost = record_of(outcome=outcome, reason="no room left", windows=[], evaluations=[], wall=None)
    text, values = shown([lost], lost.run.id)
    assert f"{outcome}: no room left" in text
    assert (values["repeats"][0]["reason"], values["epochs"], values["seconds_by_part"]) == ("no room left", [], {})


def test_a_later_failure_does_not_hide_the_curve() -> None:
    done = record_of(framework_choice="not PyTorch: no such model")
    lost = record_of(outcome="failed", reason="killed", started="2026-11-22T10:00:00+00:00", windows=[], evaluations=[])
    text, values = shown([lost, done], done.run.id)
    assert len(values["epochs"]) == 6
    assert all(part in text for part in ("killed", "not PyTorch: no such model"))


def test_a_withdrawn_speed_is_not_shown() -> None:
    record = record_of(speed_withdrawn="a defect").without_speed()
    _, values = shown([record], record.run.id)
    assert values["epochs"][-1] == {"epoch": 6, "loss": 1.0, "accuracy": 0.75}
    assert (values["repeats"][0]["samples_per_second"], values["seconds_by_part"]) == (None, {})


@pytest.mark.parametrize("start", ["zz", "", "@test machine", "0@tset machine", "several"])
def test_a_name_of_no_run_or_of_several_is_the_users_mistake(start: str) -> None:
    records = [record for rate in range(1, 20) for record in repeats_of(4.0, learning_rate=rate / 100)]
    if start == "several":
        ids = [record.run.id for record in records]
        start = max("0123456789abcdef", key=lambda digit: sum(run_id.startswith(digit) for run_id in ids))
    with pytest.raises(UserError) as caught:
        shown(records, start)
    assert "\n" not in str(caught.value)
