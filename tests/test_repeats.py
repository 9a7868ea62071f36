"""What counts as a repeat, what repeats are summarized to, and between which of them a speed-up is computed."""

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from poc.published import load
from poc.records.record import Record
from poc.report import repeats
from poc.values import to_plain
from tests.builders import AUGMENTED, SAMPLES, TEST_CPU, build, record_of, repeats_of

NOISY: dict[str, Any] = {"others_busy_cores": 1.0}


def summary_of(*records: Record) -> Any:
    """Return the only row that these records are summarized to."""
    (row,) = repeats.summarize(build(*records)).itertuples()
    return row


SAME = [
    *({"run": {"seed": 7}}, {"run": {"recipe": "mine"}}, {"run": {"lr_rule": "linear"}}, {"run": {"restarts": 3}}),
    *({"commit": "1234567"}, {"price_per_hour": 3.0}, {"others_busy_cores": 1.5}),
    {"run": {"dtype": "float32", "layout": "NCHW"}},  # the usual ones, named
]
OTHER = [
    *({"run": {"steps": 55}}, {"run": {"epochs": 3, "steps": 30}, "epoch_seconds": [4.0] * 3}),
    *({"run": {"quick": True}}, {"run": {"seconds": 60.0}}, {"run": {"target_accuracy": 0.75}}),
    *({"run": {"dtype": "bfloat16"}}, {"run": {"layout": "NHWC"}}, {"run": {"learning_rate": 0.1}}),
    *({"run": {"warmup_steps": 10}}, {"run": {"decay": "cosine"}}, {"run": {"optimizer": "nesterov"}}),
    {"run": {"graphs": False}},
    *({"run": {"batch_per_device": 64, "global_batch": 64}}, {"run": {"model": "cifar_resnet20_v2"}}),
    *({"run": {"emulated": True, "devices": 4, "global_batch": 512}}, {"run": {"cores_per_worker": 1}}),
    *({"run": {"framework": "pytorch"}, "versions": {"torch": "2.13.0"}}, {"versions": {"mxnet": "1.7.0"}}),
    {"run": {"data": {**AUGMENTED, "crop": 32}}},
    *({"environment": {"OMP_PROC_BIND": "true"}}, {"environment": {}}),  # none is more than not knowing
    *({"data_checksum": "abcd"}, {"dataset": "cifar10 (jpeg)"}, {"threads": 1}),
    *({"infrastructure": "another machine"}, {"hardware": {**TEST_CPU, "cpu": "Newer"}}),
]


def test_repeats_of_a_setting_differ_in_the_seed_and_in_names_only() -> None:
    same = [record_of(started=f"2026-11-22T1{hour}:00:00+00:00", **change) for hour, change in enumerate(SAME)]
    table = build(record_of(), *same)
    assert table.setting.nunique() == table.workload.nunique() == 1
    assert sorted(table.repeat) == list(range(1, len(SAME) + 2))
    table = build(record_of(), *(record_of(**change) for change in OTHER))
    assert table.setting.nunique() == len(repeats.summarize(table)) == len(OTHER) + 1
    assert set(table.repeat) == {1}


def test_a_setting_is_summarized_by_the_median_range_and_number_of_its_clean_repeats() -> None:
    clean, noisy = repeats_of((4.0, 5.0, 8.0)), repeats_of((2.0,), hour=11, **NOISY)
    noisy = [replace(each, windows=[replace(window, waited=0.0) for window in each.windows]) for each in noisy]
    row = summary_of(*noisy, *clean)
    assert (row.samples_per_second, row.rate_low, row.rate_high, row.n) == (256.0, 160.0, 320.0, 3)
    assert (row.seconds_per_epoch, row.noisy, row.data_wait) == (5.0, False, pytest.approx(0.1))
    assert row.started == noisy[0].started  # the latest repeat tells all else
    # With none clean, noisy ones count, and the setting is marked.
    row = summary_of(*repeats_of((4.0, 2.0), **NOISY))
    assert (row.samples_per_second, row.n, row.noisy) == (480.0, 2, True)
    # What failed is no repeat.
    assert summary_of(*clean, record_of(outcome="failed", reason="lost", started="2026-11-25")).n == 3


def test_accuracy_is_the_median_over_seeds_each_by_its_latest_repeat() -> None:
    def trained(seed: int, day: int, last: float, **changes: Any) -> Record:
        curve = [0.1, 0.2, 0.3, 0.4, 0.5, last]
        return record_of(accuracies=curve, run={"seed": seed}, started=f"2026-11-2{day}T10:00:00+00:00", **changes)

    records = [trained(0, 1, 0.1), trained(0, 5, 0.7), trained(1, 2, 0.8), trained(2, 3, 0.9, **NOISY)]
    row = summary_of(*records)
    assert (row.accuracy, row.seeds, row.n) == (0.8, 3, 3)
    assert row.accuracy_last4 == pytest.approx((0.3 + 0.4 + 0.5 + 0.8) / 4)


def test_repeats_are_noisy_by_the_fraction_of_the_cores_that_they_could_use() -> None:
    cores = [(0.15, 0.06, 4), (0.2, None, 4), (0.2, None, 1), (None, 0.1, 1), (0.09, None, None), (0.11, None, None)]
    records = [
        record_of(others_busy_cores=busy, stolen_cores=stolen, usable_cores=usable, started=f"2026-11-2{day}")
        for day, (busy, stolen, usable) in enumerate(cores)
    ]
    assert list(build(*records).noisy) == [True, False, True, True, False, True]  # the machine has two cores


def workers(count: int, seconds: float, **changes: Any) -> Record:
    """Return six epochs of 1,280 samples, whatever the number of workers; each has a core and 64 samples per step."""
    run = {"devices": count, "workers": count, "cores_per_worker": 1, "kvstore": "dist_sync", "batch_per_device": 64}
    run.update(changes.pop("run", {}))
    batch = run["batch_per_device"] * count
    run = {"global_batch": batch, "steps_per_epoch": SAMPLES // batch, "steps": 6 * SAMPLES // batch, **run}
    return record_of(run=run, epoch_seconds=[seconds] * 6, accuracies=(), **changes)


def members(table: pd.DataFrame) -> list[tuple[str, list[Any], list[Any]]]:
    """Return each series as its kind and the (devices, batch, samples/s) of both sides."""
    columns = ["devices", "global_batch", "samples_per_second"]
    return [(kind, *(side[columns].values.tolist() for side in sides)) for kind, *sides in repeats.series(table)]


def test_a_measured_series_has_its_speedups() -> None:
    # They started an hour apart, which is the most that is compared.
    table = build(workers(1, 8.0), workers(2, 4.0, started="2026-11-21T11:00:00+00:00"))
    assert members(table) == [("weak", [[1, 64, 160]], [[2, 128, 320]])]
    one, two = table.sort_values("devices").itertuples()
    assert (two.scaling, two.speedup_throughput, two.efficiency_throughput) == ("weak", 2.0, 1.0)
    assert two.speedup_wall == pytest.approx(one.wall_seconds / two.wall_seconds)
    assert two.efficiency_wall == pytest.approx(two.speedup_wall / 2)
    # Wall times of other work do not compare.
    short = record_of(run={**to_plain(workers(2, 4.0).run), "epochs": 3, "steps": 30}, epoch_seconds=[4.0] * 3)
    assert build(workers(1, 8.0), short).speedup_wall.isna().all()


NOT_ALIKE = [
    *({"run": {"emulated": True}}, {"run": {"quick": True}}, {"outcome": "failed"}, {"infrastructure": "elsewhere"}),
    *({"started": "2026-11-21T11:01:00+00:00"}, {"data_checksum": "abcd"}, {"run": {"dtype": "bfloat16"}}),
    *({"run": {"model": "cifar_resnet20_v2"}}, {"run": {"steps": 50}}),
    *({"run": {"batch_per_device": 32, "global_batch": 32}}, {"run": {"gradient_noise": 10}}),
]


def test_without_a_comparable_row_on_one_device_there_is_no_speedup() -> None:
    table = build(workers(2, 4.0), *(workers(1, 8.0, **change) for change in NOT_ALIKE))
    assert table[table.devices == 2].speedup_throughput.isna().all()


def test_weak_and_strong_scaling_share_their_row_on_one_device_and_kvstores_are_series_of_their_own() -> None:
    strong = {"batch_per_device": 32}
    horovod = workers(2, 2.0, run={"kvstore": "horovod"})
    lost = workers(4, 4.0, outcome="failed", reason="lost")
    table = build(workers(1, 8.0), workers(2, 4.0), workers(2, 5.0, run=strong), horovod, lost)
    assert sorted(members(table)) == [
        ("strong", [[1, 64, 160]], [[2, 64, 256]]),
        ("weak", [[1, 64, 160]], [[2, 128, 320]]),
        ("weak", [[1, 64, 160]], [[2, 128, 640]]),
    ]
    assert sorted(table.speedup_throughput.dropna()) == pytest.approx([1.6, 2.0, 4.0])
    # Two workers with 64 samples each, of which only the row with 128 on one is from the same hour.
    single = workers(1, 8.0, started="2026-11-20T10:00:00+00:00"), workers(1, 6.0, run={"batch_per_device": 128})
    (two,) = build(*single, workers(2, 4.0)).query("devices == 2").itertuples()
    assert (two.scaling, two.speedup_throughput) == ("strong", pytest.approx(1.5))


def test_speedups_of_the_theano_study_with_the_time_that_workers_wait_and_without() -> None:
    published = build(studies=load())
    theano = published[(published.study == "theano_mpi") & published.speedup_without_sync.notna()]
    assert len(theano) == 16
    assert theano.efficiency_throughput.tolist() == pytest.approx((theano.speedup_throughput / theano.devices).tolist())
    (alexnet,) = theano[theano.printed == "AlexNet_128b, t_8GPU"].itertuples()
    assert alexnet.speedup_throughput == pytest.approx(20.50 / (2.63 + 0.61 + 3.03))
    assert alexnet.speedup_without_sync == pytest.approx(20.50 / (2.63 + 0.61))
