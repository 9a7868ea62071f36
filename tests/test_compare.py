"""Two runs side by side: which repeats count, what differs, and what is significant. One run in `poc show`."""

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_ind

from poc.cli import compare, show
from poc.records.record import Breakdown, Record
from poc.records.timing import PARTS
from poc.values import UserError
from tests.builders import SAMPLES, TEST_CPU, build, record_of, repeats_of

SLOW, FAST = (4.0, 4.1, 3.9, 4.2), (2.0, 2.1, 1.9)
OTHER = {"learning_rate": 0.4}


def compared(records: Sequence[Record], first: str, second: str) -> dict[str, Any]:
    """Return the comparison of two runs; its text has the same numbers."""
    values = compare.compare(build(*records), first, second)
    ratio = values["samples/s"]["estimate"]
    assert math.isnan(ratio) or f"{ratio:.3f}" in compare.text(values)
    assert json.loads(compare.as_json(values))["samples/s"]["estimate"] == (None if math.isnan(ratio) else ratio)
    return values


def test_what_differs_and_by_how_much() -> None:
    slow, fast = repeats_of(SLOW), repeats_of(FAST, run={**OTHER, "decay": "linear"})
    values = compared([*slow, *fast], slow[0].run.id[:6], fast[0].run.id)
    assert values["runs"] == [slow[0].run.id, fast[0].run.id]
    assert values["differences"] == {"lr": ["0.05", "0.4"], "schedule": ["", "decay linear"]}
    rate = values["samples/s"]
    assert [sorted(side) for side in rate["sides"]] == [
        [SAMPLES / seconds for seconds in sorted(side, reverse=True)] for side in (SLOW, FAST)
    ]
    logarithms = [[math.log(SAMPLES / seconds) for seconds in side] for side in (SLOW, FAST)]
    interval = ttest_ind(*logarithms, equal_var=False).confidence_interval(0.95)
    assert rate["estimate"] == pytest.approx(math.exp(sum(logarithms[0]) / 4 - sum(logarithms[1]) / 3))
    assert rate["interval"] == pytest.approx([math.exp(interval.low), math.exp(interval.high)])
    assert (rate["significant"], rate["n"]) == (True, [4, 3])
    assert values["second_is_worse"] == []
    assert compared([*slow, *fast], fast[0].run.id, slow[0].run.id)["second_is_worse"] == ["samples/s"]


@pytest.mark.parametrize("fields", [{"gradient_noise": 5}, {"window": 5}, {"seconds": 60.0}, {"steps": 50}])
def test_how_runs_are_measured_may_differ(fields: dict[str, Any]) -> None:
    first, second = record_of(run={"seconds": 90.0}), record_of(run={"seconds": 90.0, **fields})
    assert compared([first, second], first.run.id, second.run.id)["differences"].keys() == {"measurement"}


def test_a_side_that_never_completes_is_worse() -> None:
    stable, failed = repeats_of(SLOW), repeats_of(SLOW, run=OTHER)
    for outcome, reason, worse in (("diverged", "nan", ["outcome"]), ("failed", "interrupted", [])):
        ends = [dataclasses.replace(record, outcome=outcome, reason=reason) for record in failed]
        values = compared([*stable, *ends], stable[0].run.id, ends[0].run.id)
        assert (values["second_is_worse"], values["exit_code"]) == (worse, len(worse))


@pytest.mark.parametrize(("runs", "significant"), [(1, True), (10, False)])
def test_several_runs_share_the_5_percent(runs: int, significant: bool) -> None:
    """Welch's test of these repeats has p = 0.04."""
    sides = [
        build(*(record for n in range(runs) for record in repeats_of(seconds, run={"learning_rate": 0.01 * (n + 1)})))
        for seconds in ((4.0, 4.1, 3.9), (4.25, 4.35, 4.15))
    ]
    for values in compare.same_runs(sides, None):
        assert (values["samples/s"]["significant"], values["exit_code"]) == (significant, int(significant))


def test_fewer_than_three_repeats_give_a_ratio_and_no_test() -> None:
    first, second = repeats_of((4.0,)), repeats_of((1.0, 2.0), run=OTHER)
    rate = compared([*first, *second], first[0].run.id, second[0].run.id)["samples/s"]
    assert rate["estimate"] == pytest.approx(math.sqrt(1.0 * 2.0) / 4.0)
    assert (rate["interval"], rate["significant"], rate["n"]) == (None, None, [1, 2])


def test_on_one_machine_only_repeats_of_the_same_hour_count() -> None:
    one = repeats_of(SLOW, commit="aaaaaaa")
    later, beside = repeats_of(FAST, hour=20, commit="bbbbbbb"), repeats_of(FAST, commit="ccccccc")
    run_id = one[0].run.id
    # A noisy repeat does not count, is in no median, and is nothing to be in the same hour as.
    busy = [record_of(epoch_seconds=[9.0] * 6, others_busy_cores=1.5, commit=each * 7) for each in "ab"]
    values = compared([*one, *later, *busy], f"{run_id}@aaa", f"{run_id}@bbb")
    assert (values["same_machine"], values["samples/s"]["n"]) == (True, [0, 0])
    assert (values["samples/s"]["interval"], values["differences"].keys()) == (None, {"commit"})
    rate = compared([*one, *later, *beside], f"{run_id}@aaa", f"{run_id}@ccc")["samples/s"]
    assert (rate["n"], rate["significant"]) == ([4, 3], True)
    noisy = compared([*one, *busy, *beside], f"{run_id}@aaa", f"{run_id}@ccc")["samples/s"]
    assert (noisy["n"], noisy["interval"]) == (rate["n"], rate["interval"])


def test_other_machines_and_other_hardware_need_no_common_hour() -> None:
    here, there = repeats_of(SLOW), repeats_of(FAST, hour=20, infrastructure="there")
    upgraded = repeats_of(FAST, hour=20, hardware={**TEST_CPU, "cpu": "Newer"}, commit="bbbbbbb")
    # With the same GPUs, too, whose CPU is in no name of the machine.
    gpus = {**TEST_CPU, "gpus": [{"index": 0, "name": "GPU", "capability": [9, 0], "memory_bytes": 2**34}]}
    servers = [
        record
        for number, cpu in enumerate(("Test", "Newer"))
        for record in repeats_of(FAST, hour=9 + number * 5, hardware={**gpus, "cpu": cpu}, commit="cd"[number] * 7)
    ]
    run_id = here[0].run.id
    values = compared(servers, f"{run_id}@ccc", f"{run_id}@ddd")
    assert (values["same_machine"], values["differences"]["cpu"]) == (False, ["Test", "Newer"])
    for other, name in ((there, f"{run_id}@there"), (upgraded, f"{run_id}@test@bbb")):
        values = compared([*here, *other], f"{run_id}@test machine@abcdef", name)
        assert (values["same_machine"], values["samples/s"]["n"]) == (False, [4, 3])
        assert values["samples/s"]["significant"]
        assert values["differences"].keys() & {"machine", "hardware"}


def test_all_seeds_of_a_setting_are_its_repeats() -> None:
    accuracies = {"slow": (0.71, 0.72, 0.74), "fast": (0.73, 0.76, 0.75)}
    slow, fast = (
        [
            record_of(accuracies=[0.1, last], epoch_seconds=[4.0, 4.0], run={"seed": seed, **changes})
            for seed, last in enumerate(accuracies[name])
        ]
        for name, changes in (("slow", {}), ("fast", OTHER))
    )
    values = compared([*slow, *fast], slow[1].run.id, fast[0].run.id)
    assert values["runs"] == [slow[1].run.id, fast[0].run.id]
    assert values["differences"] == {"lr": ["0.05", "0.4"]}
    accuracy = values["accuracy"]
    assert [sorted(side) for side in accuracy["sides"]] == [[0.71, 0.72, 0.74], [0.73, 0.75, 0.76]]
    interval = ttest_ind(*accuracies.values(), equal_var=False).confidence_interval(0.95)
    assert accuracy["estimate"] == pytest.approx((0.71 + 0.72 + 0.74 - 0.73 - 0.76 - 0.75) / 3)
    assert accuracy["interval"] == pytest.approx([interval.low, interval.high])
    assert not accuracy["significant"]
    # Two seeds of one setting: each on its own. A seed that was repeated counts once for the accuracy.
    again = record_of(accuracies=[0.1, 0.71], epoch_seconds=[4.0, 4.0], started="2026-11-21T10:30:00+00:00")
    values = compared([*slow, again], slow[0].run.id, slow[1].run.id)
    assert (values["differences"], values["samples/s"]["n"]) == ({"seed": ["0", "1"]}, [2, 1])
    assert (values["accuracy"]["n"], values["accuracy"]["interval"]) == ([1, 1], None)
    # In two folders, too, where a worse accuracy is found.
    folders = [
        build(*(record_of(accuracies=[low + seed / 100], run={"seed": seed}) for seed in range(4)))
        for low in (0.7, 0.4)
    ]
    (values,) = compare.same_runs(folders, None)
    assert (values["accuracy"]["n"], values["second_is_worse"], values["exit_code"]) == ([4, 4], ["accuracy"], 1)


def test_seeds_with_one_accuracy_do_not_differ_by_rounding() -> None:
    records = [
        record_of(accuracies=[0.1], run={"seed": seed, "learning_rate": rate})
        for rate, n in ((0.4, 5), (0.8, 7))
        for seed in range(n)
    ]
    values = compared(records, records[0].run.id, records[-1].run.id)
    assert (values["accuracy"]["n"], values["accuracy"]["significant"], values["exit_code"]) == ([5, 7], False, 0)


def test_a_repeat_with_fewer_threads_does_not_hide_those_on_all_cores() -> None:
    repeats = [dataclasses.replace(record, threads=2) for record in repeats_of(SLOW)]
    beside_others = record_of(threads=1, started="2026-11-21T11:00:00+00:00")
    (values,) = compare.same_runs([build(*repeats, beside_others), build(*repeats)], 0.05)
    assert values["samples/s"]["n"] == [len(SLOW)] * 2
    (values,) = compare.same_runs([build(beside_others), build(*repeats)], 0.05)
    assert values["differences"] == {"threads": ["1", "2"]}


def test_a_name_without_a_machine_is_of_one_that_has_both_runs() -> None:
    here, there = repeats_of(SLOW, infrastructure="node"), repeats_of(SLOW, hour=20, infrastructure="node 2")
    other = repeats_of(FAST, run=OTHER, infrastructure="node")
    records, run_id = [*here, *there, *other], here[0].run.id
    assert "machine" not in compared(records, run_id, other[0].run.id)["differences"]
    # An exact name is not also the start of others.
    assert compared(records, f"{run_id}@node", f"{run_id}@node 2")["differences"] == {"machine": ["node", "node 2"]}


@pytest.mark.parametrize("outcome", ["failed", "skipped", "diverged", "out of memory"])
def test_a_run_that_did_not_complete_has_no_speed_or_accuracy(outcome: str) -> None:
    repeats, lost = repeats_of(SLOW), record_of(outcome=outcome, reason="lost", run=OTHER)
    for pair in ((repeats[0].run.id, lost.run.id), (lost.run.id, repeats[0].run.id)):
        values = compared([*repeats, lost], *pair)
        ends = {} if outcome == "skipped" else {outcome: 1}
        assert values["not_completed"] == [ends if name == lost.run.id else {} for name in pair]
        for name in ("samples/s", "accuracy"):
            assert (math.isnan(values[name]["estimate"]), values[name]["interval"]) == (True, None)


@pytest.mark.parametrize("names", [("", ""), ("", "@test"), ("@abc", "@test@abcd"), ("", "@there")])
def test_two_names_of_the_same_repeats_are_the_users_mistake(names: tuple[str, str]) -> None:
    records = repeats_of(SLOW)
    first, second = (f"{records[0].run.id}{name}" for name in names)
    with pytest.raises(UserError):
        compare.compare(build(*records), first, second)


def in_folders(*sides: Sequence[Record], slower: float = 0.05) -> list[dict[str, Any]]:
    return compare.same_runs([build(*side) for side in sides], slower)


def test_folders_are_compared_on_a_machine_that_both_have() -> None:
    here = repeats_of(SLOW)
    there = [dataclasses.replace(each, infrastructure="there") for each in repeats_of(FAST, minute=30)]
    (comparison,) = in_folders([*here, *there], here)
    assert comparison["same_machine"]
    assert comparison["samples/s"]["estimate"] == 1
    # Also if both have a later record of another machine that did not complete.
    skipped = dataclasses.replace(there[0], outcome="skipped", reason="no", started="2026-11-30T10:00:00+00:00")
    (comparison,) = in_folders([*here, skipped], [*here, skipped])
    assert comparison["samples/s"]["n"] == [len(SLOW)] * 2


def test_machines_may_have_an_at_sign_in_their_names() -> None:
    sides = [[dataclasses.replace(each, infrastructure=name) for each in repeats_of(SLOW)] for name in ("a@x", "b@x")]
    run = sides[0][0].run.id
    assert compared([*sides[0], *sides[1]], f"{run}@a@x", f"{run}@b@x")["samples/s"]["n"] == [len(SLOW)] * 2


def test_only_runs_with_enough_repeats_share_the_5_percent() -> None:
    one = [record_of(run={"seed": 0, "learning_rate": rate}) for rate in (0.1, 0.2)]
    paused = record_of(run={"learning_rate": 0.3, "pause_after": 2})
    first, *others = in_folders([*repeats_of(SLOW), *one, paused], [*repeats_of(SLOW), *one, paused])
    assert first["samples/s"]["confidence"] == pytest.approx(0.95)
    assert len(others) == len(one)


def test_the_gate_does_not_ask_for_more_repeats_where_none_would_decide() -> None:
    fast = repeats_of(FAST)
    lost = [dataclasses.replace(each, outcome="out of memory", reason="", windows=(), evaluations=()) for each in fast]
    short = [dataclasses.replace(each, windows=each.windows[:1]) for each in fast]
    for first, second, code in (
        *((fast, lost, 1), (lost, lost, compare.TOO_FEW)),
        *((fast, short, compare.TOO_FEW), (fast, fast[:1], compare.TOO_FEW)),
    ):
        (comparison,) = in_folders(first, second)
        assert comparison["exit_code"] == code
        asks = "would decide" in compare.text(comparison)
        assert asks == (second == fast[:1])


# `poc show`: all repeats of a run, its curve, and the parts of its time


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
    hardware = slow[0].hardware.describe()
    head = shown([record_of(infrastructure=hardware)], run_id).partition("\n\n")[0]
    assert head.count(hardware) == 1  # a machine without a name has that of its hardware


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
    seconds: Any = {"whole_step_seconds": 0.01, "independent_step_seconds": 0.008, "exchange_seconds": 0.003}
    detail = Breakdown(**seconds, bus_bytes_per_second=None, synchronisation_seconds=None)
    lines = shown([record_of(detail=detail)], record_of().run.id).split("\n\n")[-1].splitlines()[3:]
    assert [line.rsplit(maxsplit=1)[1] for line in lines] == ["10.0", "8.0", "3.0"]
    assert "whole step" not in shown([record_of()], record_of().run.id)


@pytest.mark.parametrize("start", ["zz", "", "@test machine", "0@tset machine", "several"])
def test_a_name_of_no_run_or_of_several_is_the_users_mistake(start: str) -> None:
    records = [record_of(run={"learning_rate": rate / 100}) for rate in range(1, 20)]
    if start == "several":
        ids = [record.run.id for record in records]
        start = max("0123456789abcdef", key=lambda digit: sum(run_id.startswith(digit) for run_id in ids))
    with pytest.raises(UserError):
        shown(records, start)
