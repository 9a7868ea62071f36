"""`poc show`: all repeats of a run, its curve, and the parts of its time."""

from pathlib import Path

import pytest

from poc.cli import show
from poc.records.record import Breakdown, Record
from poc.records.timing import PARTS
from poc.values import UserError
from tests.builders import build, record_of, repeats_of


def shown(records: list[Record], name: str) -> str:
    return show.text(build(*records), records, name, Path("results"))


def test_a_run_is_shown_with_all_its_repeats() -> None:
    slow, fast = repeats_of((4.0, 5.0)), repeats_of((2.0,), run={"learning_rate": 0.4})
    elsewhere = record_of(epoch_seconds=[8.0] * 6, infrastructure="elsewhere", data_checksum="abcd")
    run_id = slow[0].run.id
    records = [*fast, *slow, elsewhere]
    text = shown(records, run_id[:6])
    assert [rate in text for rate in ("320.0", "256.0", "160.0", "640.0")] == [True, True, True, False]
    # The curve and the parts of the time are of the last repeat.
    epochs, parts = text.split("\n\n")[-2:]
    assert [line.split() for line in epochs.splitlines()[3:]][:2] == [
        ["1", "1.0000", "256.0", "5.0", "0.5000"],
        ["2", "1.0000", "256.0", "5.0", "0.5500"],
    ]
    shares = {line.split()[0]: float(line.split()[1]) for line in parts.splitlines()[3:]}
    assert set(shares) == set(PARTS)
    assert sum(shares.values()) == pytest.approx(slow[-1].wall, abs=0.4)
    text = shown(records, f"{run_id}@else")
    assert [rate in text for rate in ("320.0", "256.0", "160.0")] == [False, False, True]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "out of memory"])
def test_a_run_that_never_completed_has_its_reason(outcome: str) -> None:
    lost = record_of(outcome=outcome, reason="no room left", windows=[], evaluations=[], wall=None)
    assert f"{outcome}: no room left" in shown([lost], lost.run.id)


def test_a_later_failure_does_not_hide_the_curve() -> None:
    done = record_of(framework_choice="not PyTorch: no such model")
    lost = record_of(outcome="failed", reason="killed", started="2026-11-22T10:00:00+00:00", windows=[], evaluations=[])
    text = shown([lost, done], done.run.id)
    assert all(part in text for part in ("killed", "not PyTorch: no such model", "0.7500"))


def test_the_speed_of_emulated_devices_is_marked() -> None:
    real, emulated = (record_of(run={"devices": 4, "emulated": emulated}) for emulated in (False, True))
    heads = [shown([record], record.run.id).split("\n\n")[0].splitlines() for record in (real, emulated)]
    assert len(heads[1]) == len(heads[0]) + 1


def test_the_step_time_breakdown_is_shown_where_it_was_measured() -> None:
    detail = Breakdown(
        whole_step_seconds=0.01,
        independent_step_seconds=0.008,
        exchange_seconds=0.003,
        bus_bytes_per_second=None,
        synchronisation_seconds=None,
        data_seconds=0.0,
    )
    lines = shown([record_of(detail=detail)], record_of().run.id).split("\n\n")[-1].splitlines()[3:]
    assert [line.rsplit(maxsplit=1)[1] for line in lines] == ["10.0", "8.0", "3.0"]
    assert "whole step" not in shown([record_of()], record_of().run.id)


def test_a_machine_s_name_may_have_an_at_sign() -> None:
    here, there = (record_of(infrastructure=name) for name in ("me@box", "you@box"))
    assert "you@box" not in shown([here, there], f"{here.run.id}@me@box")


@pytest.mark.parametrize("start", ["zz", "", "@test machine", "0@tset machine", "several"])
def test_a_name_of_no_run_or_of_several_is_the_users_mistake(start: str) -> None:
    records = [record_of(run={"learning_rate": rate / 100}) for rate in range(1, 20)]
    if start == "several":
        ids = [record.run.id for record in records]
        start = max("0123456789abcdef", key=lambda digit: sum(run_id.startswith(digit) for run_id in ids))
    with pytest.raises(UserError):
        shown(records, start)
