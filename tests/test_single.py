"""One run of the journal in words, and two side by side."""

from __future__ import annotations

import pytest

from poc.records.record import Record
from poc.report import single
from poc.values import UserError
from tests.builders import record_of


def takes(*seconds: float, **run: object) -> list[Record]:
    """A take for each duration of an epoch."""
    return [
        record_of(epoch_seconds=[each] * 6, run=run, started=f"2026-11-2{day}T10:00:00+00:00")
        for day, each in enumerate(seconds)
    ]


def test_a_run_is_shown_with_all_its_takes() -> None:
    records = [*takes(4.0, 5.0), *takes(2.0, learning_rate=0.4)]
    text = single.shown(records, records[0].run.id[:6])
    assert "320.0" in text  # 1,280 samples in 4 s
    assert "256.0" in text
    assert "640.0" not in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith(("1 ", "6 "))] == ["0.5000", "0.7500"]
    assert "train" in text


def test_two_runs_are_compared_in_what_differs_and_over_their_takes() -> None:
    slow, fast = takes(4.0, 4.1, 3.9, 4.0), takes(2.0, 2.1, 1.9, learning_rate=0.4)
    ids = slow[0].run.id, fast[0].run.id
    text = single.compared([*slow, *fast], *ids)
    assert {line.split()[0] for line in text.splitlines() if line.startswith(("lr", "learn", "batch", "seed"))} == {
        "learning_rate"
    }
    assert "320.0 (312.2 to 328.2, 4 takes)" in text
    assert "Different: the first has 0.5" in text
    busy = record_of(epoch_seconds=[8.0] * 6, others_busy_cores=1.5, started="2026-11-28T10:00:00+00:00")
    assert "320.0 (312.2 to 328.2, 4 takes)" in single.compared([*slow, *fast, busy], *ids)
    assert "160.0 (1 take)" in single.compared([*fast, busy], *ids)
    elsewhere = [record_of(infrastructure="elsewhere", started="2026-11-29T10:00:00+00:00")]
    assert "4 takes" in single.compared([*slow, *fast, *elsewhere], f"{ids[0]}@test", ids[1])
    assert "No verdict" in single.compared([*slow, *fast, *elsewhere], *ids)
    lost = record_of(outcome="failed", reason="lost", run={"learning_rate": 0.8})
    for both in ((lost.run.id, ids[0]), (ids[0], lost.run.id)):
        assert "there are 0 and 0." in single.compared([*slow, lost], *both)


def test_takes_on_other_images_are_shown_as_such_and_not_compared_with_them() -> None:
    slow, fast = takes(4.0, 4.1, 3.9), takes(2.0, 2.1, 1.9, learning_rate=0.4)
    others = [record_of(epoch_seconds=[8.0] * 6, data_checksum="abcd", started="2026-11-20T10:00:00+00:00")]
    text = single.shown([*others, *slow], slow[0].run.id)
    assert ("cifar10 abcd" in text, "160.0" in text) == (True, True)
    assert "320.0 (312.2 to 328.2, 3 takes)" in single.compared([*others, *slow, *fast], slow[0].run.id, fast[0].run.id)
    assert "cifar10 abcd" in single.compared([*others, *fast], slow[0].run.id, fast[0].run.id)


@pytest.mark.parametrize(
    ("start", "says"),
    [
        ("zz", "no id in the journal starts with 'zz'"),
        ("", "no id in the"),
        ("0@tset machine", "did you mean 'test machine'"),
    ],
)
def test_an_id_that_no_run_or_several_have_is_the_users_mistake(start: str, says: str) -> None:
    records = [record for rate in range(1, 40) for record in takes(4.0, learning_rate=rate / 100)]
    with pytest.raises(UserError, match=says):
        single.shown(records, start)
    with pytest.raises(UserError, match="it holds none"):
        single.shown([], "ab")
    first = max("0123456789abcdef", key=lambda digit: sum(one.run.id.startswith(digit) for one in records))
    with pytest.raises(UserError, match="ids start with"):
        single.shown(records, first)
