"""The published figures against the sources' own tables, and the flags against faults made on purpose."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from poc import studies as published

COLUMNS = [
    *("study", "infrastructure", "hardware", "framework", "network", "parameters", "dataset", "input_shape"),
    *(
        "batch_per_device",
        "total_batch",
        "learning_rate",
        "devices",
        "exchange",
        "layout",
        "epochs",
        "accuracy",
    ),
    *("seconds_per_epoch", "samples_per_second", "utilisation", "train_seconds_per_5120"),
    *("communication_seconds_per_5120", "sync_seconds_per_5120", "speedup_throughput", "speedup_wall"),
    *("efficiency_throughput", "efficiency_wall", "scaling", "note", "printed"),
]

# infrastructure | model | batch size | gpus | accuracy | epochs | s/epoch | samples/s, as the study has them.
BEEVA = """
1 | resnet110 | 128 | 1 | 0.818 | 12 | 96.9 | 520
1 | resnet50 | 64x8 | 8 | 0.702 | 12 | 8.1s | 6200
1 | resnet50 | 64x4 | 4 | 0.768 | 12 | 13.8s | 3600
1 | resnet50 | 64x2 | 2 | 0.817 | 12 | 27.1s | 1800
1 | resnet50 | 64x1 | | | | |
1 | resnet50 | 64x8 (lr=0.4) | 8 | 0.765 | 12 | 8.0s | 6200
1 | resnet50 | 64x4 (lr=0.2) | 4 | 0.783 | 12 | 13.8s | 3600
1 | resnet50 | 128x8=1024 (lr=0.4) | 8 | 0.786 | 12 | 7.1 | 6800 (8-80%)
1 | resnet50 | 128x4=512 (lr=0.2) | 4 | 0.810 | 12 | 11.4 | 4300 (4-90%)
1 | resnet50 | 128x2=256 (lr=0.1) | 2 | 0.779 | 12 | 22.2 | 2200 (2-90%)
1 | resnet50 | 128x1 (lr=0.05) | 1 | 0.810 | 12 | 44.7 | 1100 (1-90%)
1 | resnet50 | 256x8=2048 (lr=0.4) | 8 | 0.722 | 12 | 5.1 | 9400 (8-90%)
1 | resnet50 | 256x4=1024 (lr=0.2) | 4 | 0.722 | 12 | 9.8 | 5100 (4-90%)
1 | resnet50 | 256x2=512 (lr=0.1) | 2 | 0.760 | 12 | 19.4 | 2600 (2-90%)
1 | resnet50 | 256x1 (lr=0.05) | 1 | 0.700 | 12 | 38.5 | 1300 (1-95%)
1 | resnet50 | 512x1 (lr=0.05) | 1 | 0.703 | 12 | 36.3 | 1400
1 | resnet50 | 512x1 (lr=0.4) | 1 | 0.796 | 12 | 36.0 | 1400
1 | resnet50 | 512x8 (lr=3.2) | 8 | 0.278 | 12 | 4.5 | 11000
1 | resnet50 | 512 (lr=0.4) | 0 | ? | 12 | 110.0 | 450
2 | resnet110 | 512x8=4096 (lr=0.4) | 8 | 0.671 | 12 | 4.4s | 11000 (80%)
2 | resnet50 | 512x8=4096 (lr=0.4) | 8 | 0.604 | 12 | 2.1s | 24000 (70%)
2 | resnet50 | 512x8=4096 (lr=0.8) | 8 | 0.599 | 12 | 2.1s | 24000 (70%)
2 | resnet50 | 256x8=2048 (lr=0.4) | 8 | 0.733 | 12 | 2.8s | 17000 (67%)
2 | resnet50 | 256x4=1024 (lr=0.2) | 4 | 0.733 | 12 | 3.4s | 15000
2 | resnet50 | 256x2=512 (lr=0.1) | 2 | 0.773 | 12 | 6.8s | 7500
2 | resnet50 | 256x1 (lr=0.05) | 1 | 0.782 | 12 | 13.9 | 2600
2 | resnet50 | 128x8=1024 (lr=0.4) | 8 | 0.773 | 12 | 4.5 | 11000 (8-40%)
2 | resnet50 | 128x4=512 (lr=0.2) | 4 | 0.734 | 12 | 4.5 | 12000 (4-80%)
2 | resnet50 | 128x2=256 (lr=0.1) | 2 | 0.767 | 12 | 8.2 | 6100 (2-80%)
2 | resnet50 | 128x1=128 (lr=0.05) | 1 | 0.817 | 12 | 17.2 | 2900 (1-80%)
3 | resnet50 | 256 (lr=0.05) | 0 | x | 12 | 152 | 340
4 | resnet50 | 256 (lr=0.05) | 0 | x | 12 | | 33
1* | resnet50 | 512x8 (lr=0.4) | 8 | 0.611 | 12 | 5.0 | 10000 (8-95%)
1* | resnet50 | 512 (lr=0.05) | 8 | x | 12 | 37.1 | 1300 (1-97%)
"""

# Seconds for 5,120 images on 1, 2, 4 and 8 GPUs: training + communication + synchronisation.
THEANO = {
    ("googlenet", 32): "63.89 | 31.40 + 1.00 + 2.89 | 15.51 + 0.71 + 1.30 | 7.69 + 0.80 + 0.61",
    ("alexnet", 128): "20.50 | 10.35 + 0.78 + 1.06 | 5.13 + 0.54 + 2.09 | 2.63 + 0.61 + 3.03",
    ("vgg16", 16): "358.29 | 176.08 + 13.90 + 17.31 | 90.44 + 9.28 + 5.27 | 55.12 + 12.59 + 3.93",
    ("vgg16", 32): "343.37 | 169.12 + 7.14 + 36.50 | 86.97 + 4.80 + 22.72 | 43.29 + 5.41 + 3.75",
    ("resnet50", 64): "163.15 | 80.09 + 0.81 + 7.66 | 40.25 + 0.56 + 3.36 | 20.12 + 0.56 + 1.90",
}
PARTS = ["train_seconds_per_5120", "communication_seconds_per_5120", "sync_seconds_per_5120"]


@pytest.fixture(scope="module")
def studies() -> pd.DataFrame:
    return published.load()


def as_text(study: str) -> pd.DataFrame:
    path = Path(published.__file__).parent / f"{study}.csv"
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def only(rows: pd.DataFrame) -> pd.Series:
    assert len(rows) == 1, rows
    return rows.iloc[0]


def test_rows_and_columns_of_each_study(studies: pd.DataFrame) -> None:
    for study in published.STUDIES:
        assert list(as_text(study).columns) == COLUMNS
        assert set(as_text(study)["study"]) == {study}
    assert studies["study"].value_counts().to_dict() == {
        "beeva_poc_mxnet": 34,
        "theano_mpi": 25,
        "keras_multi_gpu": 114,
        "hacksa_horovod": 3,
        "pmls_caffe": 10,
    }
    assert set(studies["origin"]) == {"published"}


def test_figures_are_in_the_units_they_claim(studies: pd.DataFrame) -> None:
    for column in ("accuracy", "utilisation"):
        assert studies[column].dropna().between(0, 1).all()
    assert studies["efficiency_throughput"].dropna().between(0.05, 1.04).all()
    assert set(studies["scaling"]) == {"", "weak", "strong"}
    assert studies["printed"].str.len().gt(0).all()
    assert not studies.duplicated(["study", "infrastructure", "network", "framework", "printed"]).any()


def test_beeva_gives_the_source_table_back() -> None:
    rows = as_text("beeva_poc_mxnet").to_dict("records")
    lines = BEEVA.strip().splitlines()
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows):
        infrastructure, model, label, gpus, accuracy, epochs, seconds, speed = map(str.strip, line.split("|"))
        size, _, lr = label.partition(" (lr=")
        each, of, count = size.partition("=")[0].partition("x")
        rate, _, busy = speed.partition(" (")
        total = str(int(each) * int(count)) if of else each
        if infrastructure == "1*" and not of:  # 8 GPUs or 1: the source contradicts itself.
            each = ""

        assert row["infrastructure"] == infrastructure
        assert row["network"] == model.replace("resnet", "cifar_resnet") + "_v2"
        assert row["devices"] == (gpus or count)
        assert (row["batch_per_device"], row["total_batch"]) == (each, total)
        assert row["learning_rate"] == (lr.rstrip(")") or ("0.05" if epochs else ""))
        assert row["accuracy"] == accuracy.strip("?x")
        assert (row["epochs"], row["seconds_per_epoch"]) == (epochs, seconds.rstrip("s"))
        assert row["samples_per_second"] == rate
        assert row["utilisation"] == (f"0.{busy[-4:-2]}" if busy else "")
        assert row["printed"] == (f"{label} | {speed}" if busy else label)


def test_theano_gives_the_source_lists_back(studies: pd.DataFrame) -> None:
    theano = studies[(studies["study"] == "theano_mpi") & ~studies["printed"].str.contains("no-bind")]
    for (network, batch), line in THEANO.items():
        rows = theano[(theano["network"] == network) & (theano["batch_per_device"] == batch)]
        assert list(rows["devices"]) == [1, 2, 4, 8]
        for parts, (_, row) in zip(line.split(" | "), rows.iterrows()):
            assert list(row[PARTS].dropna()) == [float(part) for part in parts.split(" + ")]
    unbound = only(studies[studies["printed"] == "AlexNet_128b, t_8GPU (no-bind)"])
    assert list(unbound[PARTS]) == [2.61, 1.31, 7.84]
    hours = theano.loc[theano["network"] == "mlp", "seconds_per_epoch"] / 3600
    assert list(hours) == pytest.approx([0.104, 0.244, 0.197, 0.124])


def test_theano_speedups_without_and_with_synchronisation(studies: pd.DataFrame) -> None:
    result = published.speedups(studies)
    assert len(result) == 21
    alexnet = only(result[result["printed"] == "AlexNet_128b, t_8GPU"])
    assert round(alexnet["speedup_without_sync"], 2) == 6.33
    assert round(alexnet["speedup_with_sync"], 2) == 3.27
    alone = result[result["devices"] == 1]
    assert (alone[["speedup_without_sync", "speedup_with_sync"]] == 1).all(axis=None)
    assert (result["speedup_with_sync"] <= result["speedup_without_sync"]).all()


def test_a_series_without_its_one_device_row_has_no_speedup(studies: pd.DataFrame) -> None:
    first = (studies["network"] == "resnet50") & (studies["study"] == "theano_mpi") & (studies["devices"] == 1)
    result = published.speedups(studies[~first])
    missing = result[result["speedup_without_sync"].isna()]
    assert set(missing["network"]) == {"resnet50"}
    assert len(missing) == 3
    assert missing["speedup_with_sync"].isna().all()


@pytest.mark.parametrize(
    ("printed", "column", "value"),
    [
        ("resnet110", "parameters", 1_736_124),
        ("alexnet", "efficiency_throughput", 0.5870),
        ("ResNet20, replicated variable + NCCL (1.643x/82.14%)", "speedup_throughput", 1.643),
        ("GPU 3", "samples_per_second", 1476.505),
        ("gpu, replicated, NCCL TRUE, PHB 0,5", "samples_per_second", 1175.59),
        ("gpu, parameter_server, NCCL FALSE, PIX 4,5", "samples_per_second", 1830.2),
        ("7gforce, CPU", "speedup_wall", 0.43),
        ("gpu count 5, batch_size 32", "speedup_throughput", 0.58),
        ("gpu count 6, batch_size 4096", "efficiency_throughput", 0.6716),
        ("3.510x on 6 GPUs", "speedup_throughput", 3.510),
        ("InceptionV3: 7gforce, 6, CPU; tf_cnn_benchmarks", "samples_per_second", 351.98),
        ("InceptionV3: az-2x-m60, 2, CPU; avolkov1", "samples_per_second", 54.58),
        ("Resnet50: 7gforce, 4, GPU; kuza55", "efficiency_throughput", 0.1527),
        ("inception3, 7gforce, tf_cnn_benchmarks NHWC", "samples_per_second", 68.72),
        ("GPUs 8, median speedup 7.44x", "efficiency_throughput", 0.9302),
        ("AlexNet, 8 nodes: 1 day to converge, 56.5% top-1 accuracy", "accuracy", 0.565),
        ("Le et al., w/ pretrain, 1000 / 16000 cores", "accuracy", 0.158),
    ],
)
def test_figures_of_the_other_studies(studies: pd.DataFrame, printed: str, column: str, value: float) -> None:
    assert only(studies[studies["printed"] == printed])[column] == value


def test_the_two_kinds_of_scaling_of_the_keras_study(studies: pd.DataFrame) -> None:
    inception = studies[(studies["study"] == "keras_multi_gpu") & studies["printed"].str.startswith("InceptionV3")]
    split = inception[inception["framework"].str.startswith("Keras")]
    assert set(split["scaling"]) == {"strong"}
    assert set(split["total_batch"]) == {32}
    each = inception[inception["framework"].str.startswith("TensorFlow")]
    assert set(each["scaling"]) == {"weak"}
    assert set(each["batch_per_device"]) == {32}


def test_only_rows_that_contradict_themselves_are_flagged(studies: pd.DataFrame) -> None:
    flagged = studies[studies["flag"] != ""]
    assert dict(zip(flagged["printed"], flagged["flag"])) == {
        "256x1 (lr=0.05)": "13.9 s an epoch is 3,597 samples/s, printed 2,600",
        "512 (lr=0.05) | 1300 (1-97%)": "8 devices, but the utilisation is of 1",
        "gpu count 2, batch_size 4096": ("speed-up 1.8 / 2 devices is an efficiency of 0.900, printed 0.9115"),
    }
    assert list(flagged["infrastructure"]) == ["2", "1*", "7gforce"]


@pytest.mark.parametrize(
    ("study", "printed", "fault", "found"),
    [
        ("beeva_poc_mxnet", "64x2", {"samples_per_second": "8100"}, "27.1 s an epoch is 1,845 samples/s"),
        ("beeva_poc_mxnet", "64x2", {"total_batch": "64"}, "64 a device x 2 is a batch of 128"),
        (
            "beeva_poc_mxnet",
            "128x4=512 (lr=0.2) | 12000 (4-80%)",
            {"devices": "8", "total_batch": "1024"},
            "8 devices, but the utilisation is of 4",
        ),
        (
            "keras_multi_gpu",
            "InceptionV3: 7gforce, 4, CPU; avolkov1",
            {"samples_per_second": "46.05"},
            "46.05 / 41 samples/s is a speed-up of 1.12, printed 1.56",
        ),
        (
            "keras_multi_gpu",
            "InceptionV3: az-2x-m60, 2, GPU; tf_cnn_benchmarks",
            {"efficiency_throughput": "0.9793"},
            "speed-up 1.99 / 2 devices is an efficiency of 0.995, printed 0.9793",
        ),
        (
            "keras_multi_gpu",
            "7gforce, GPU",
            {"efficiency_wall": "0.65"},
            "speed-up 0.65 / 2 devices is an efficiency of 0.325, printed 0.65",
        ),
    ],
)
def test_a_fault_made_on_purpose_is_flagged(study: str, printed: str, fault: dict[str, str], found: str) -> None:
    table = as_text(study)
    row = table.index[table["printed"] == printed].item()
    assert published.contradictions(table)[row] == ""
    for column, value in fault.items():
        table.loc[row, column] = value
    assert re.match(re.escape(found), published.contradictions(table)[row])


def test_the_notes_name_the_contradictory_rows_of_the_main_study(studies: pd.DataFrame) -> None:
    main = studies[studies["study"] == "beeva_poc_mxnet"]
    assert ((main["flag"] != "") == main["note"].str.contains("contradicts itself")).all()
