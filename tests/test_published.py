"""The published figures against the sources' own tables, and the reading of users' studies."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest

from poc import published, report
from poc.__main__ import main
from poc.published import Study
from poc.records.row import Row
from poc.values import UserError

# machine | model | batch size | gpus | accuracy | epochs | s/epoch | samples/s, as the study has them.
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
PARTS = ("train_seconds_per_5120", "communication_seconds_per_5120", "sync_seconds_per_5120")
STUDIES = published.load()
ROWS = [row for study in STUDIES for row in study.rows]


def find(rows: Iterable[Row], printed: str) -> Row:
    (row,) = (row for row in rows if row.printed == printed)
    return row


def of_study(study: str) -> list[Row]:
    return [row for row in ROWS if row.study == study]


def test_each_study_is_named_and_complete() -> None:
    assert [(study.name, study.authors, study.year, len(study.rows)) for study in STUDIES] == [
        ("beeva_poc_mxnet", "Enrique Otero (BEEVA)", "2017", 34),
        ("theano_mpi", "He Ma, Fei Mao, Graham W. Taylor", "2017", 25),
        ("keras_multi_gpu", "Bohumír Zámečník (Rossum)", "2017", 114),
        ("hacksa_horovod", "Rodrigo Arias, Horia Burca", "2019", 3),
        ("pmls_caffe", "Qirong Ho", "2017", 10),
    ]
    places = [(row.study, row.machine, row.model, row.framework, row.printed) for row in ROWS]
    assert len(set(places)) == len(places)
    assert all(row.printed for row in ROWS)


def test_beeva_gives_the_source_table_back() -> None:
    text = (Path(published.__file__).parent / "beeva_poc_mxnet.csv").read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    lines = BEEVA.strip().splitlines()
    assert len(rows) == len(lines)
    for line, row in zip(lines, rows):
        machine, model, label, gpus, accuracy, epochs, seconds, speed = map(str.strip, line.split("|"))
        size, _, lr = label.partition(" (lr=")
        each, of, count = size.partition("=")[0].partition("x")
        rate, _, busy = speed.partition(" (")
        total = str(int(each) * int(count)) if of else each
        if machine == "1*" and not of:  # 8 GPUs or 1: the source contradicts itself.
            each = ""
        model, lr = model.replace("resnet", "cifar_resnet") + "_v2", lr.rstrip(")") or ("0.05" if epochs else "")
        expected = dict(machine=machine, model=model, devices=gpus or count, batch_per_device=each)
        expected.update(global_batch=total, lr=lr, accuracy=accuracy.strip("?x"), epochs=epochs)
        expected.update(seconds_per_epoch=seconds.rstrip("s"), samples_per_second=rate)
        expected.update(utilisation=f"0.{busy[-4:-2]}" if busy else "", printed=f"{label} | {speed}" if busy else label)
        assert {column: row[column] for column in expected} == expected


def test_a_batch_of_the_keras_study_is_per_gpu_and_its_address_is_of_one_version() -> None:
    rows = [row for row in of_study("keras_multi_gpu") if row.model == "keras_cifar10_cnn"]
    assert len(rows) == 18
    for row in rows:
        batch = int(row.printed.rpartition(" ")[2])
        assert (row.batch_per_device, row.global_batch, row.scaling) == (batch, batch * row.devices, "weak")
    (address,) = (study.address for study in STUDIES if study.name == "keras_multi_gpu")
    assert re.search(r"/blob/[0-9a-f]{40}/", address)


def test_seconds_and_speeds_of_the_main_study_that_differ_by_more_than_a_tenth_are_flagged() -> None:
    timed = [row for row in of_study("beeva_poc_mxnet") if row.samples_per_second and row.seconds_per_epoch]
    for row in timed:
        differs = abs(50_000 / row.seconds_per_epoch / row.samples_per_second - 1) > 0.1
        assert differs <= ("samples_per_second" in row.contradicts), row.printed
    assert len(timed) > 20


def test_theano_gives_the_source_lists_back() -> None:
    theano = [row for row in of_study("theano_mpi") if "no-bind" not in row.printed]
    for (network, batch), line in THEANO.items():
        series = [row for row in theano if (row.model, row.batch_per_device) == (network, batch)]
        assert [row.devices for row in series] == [1, 2, 4, 8]
        for parts, row in zip(line.split(" | "), series):
            printed = [getattr(row, part) for part in PARTS if getattr(row, part) is not None]
            assert printed == [float(part) for part in parts.split(" + ")]
    unbound = find(ROWS, "AlexNet_128b, t_8GPU (no-bind)")
    assert [getattr(unbound, part) for part in PARTS] == [2.61, 1.31, 7.84]
    hours = [row.seconds_per_epoch / 3600 for row in theano if row.model == "mlp"]
    assert hours == pytest.approx([0.104, 0.244, 0.197, 0.124])


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
def test_figures_of_the_other_studies(printed: str, column: str, value: float) -> None:
    assert asdict(find(ROWS, printed))[column] == value


def test_only_rows_that_contradict_themselves_are_flagged() -> None:
    assert {(row.machine, row.printed) for row in ROWS if row.flag} == {
        ("2", "256x1 (lr=0.05)"),
        ("1*", "512 (lr=0.05) | 1300 (1-97%)"),
        ("7gforce", "gpu count 2, batch_size 4096"),
    }
    for row in of_study("beeva_poc_mxnet"):
        assert ("contradicts itself" in row.note) == bool(row.flag)


MINE = """\
# title: My own cluster
# year: 2026
model,devices,samples_per_second,batch_per_device,scaling,printed
resnet50_v1,1,400,64,weak,"a, one"
resnet50_v1,2,780,64,weak,"a, two"
"""


def study_of(folder: Path, text: str) -> Study:
    """Return the study that a file with this text is read as."""
    (folder / "mine.csv").write_bytes(text.encode("latin-1"))
    (study,) = published.load(folder=folder)
    return study


def test_a_users_own_study_is_on_the_pages(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(MINE)
    *_, mine = published.load([path])
    assert (mine.name, mine.title, mine.authors, mine.year) == ("mine", "My own cluster", "", "2026")
    report.write([], [mine], page=tmp_path / "results.md", folder=tmp_path, sample="Without an explorer.")
    assert "64 x 2 | 780" in (tmp_path / "studies.md").read_text()
    rows = pd.read_csv(tmp_path / "rows.csv")
    assert list(rows.model) == ["resnet50_v1"] * 2
    assert rows.efficiency_throughput.iloc[1] == pytest.approx(780 / 400 / 2)


def test_a_study_is_read_as_spreadsheets_and_pandas_write_it(tmp_path: Path) -> None:
    text = '\xef\xbb\xbf# title: Mine,,,\r\n"# authors: A, B",,,\r\n,,,\r\n\r\nmodel,dataset,devices,accuracy,\r\n'
    study = study_of(tmp_path, text + "m,CIFAR-10,2.0,8.1e-1,\r\n,,,,\r\n\r\n")
    (row,) = study.rows
    assert (study.title, study.authors) == ("Mine", "A, B")
    assert (row.model, row.dataset, row.devices, row.accuracy) == ("m", "cifar10", 2, 0.81)


IMPOSSIBLE = {
    "accuracy": ("81.0", "-0.81", "0", "81%"),
    "samples_per_second": ("0", "inf", "1e999", "nan", "3,000"),
    "batch_per_device": ("128.5", "0"),
    "devices": ("-1", "two"),
    "scaling": ("weakly",),
}


@pytest.mark.parametrize(("column", "cell"), [(column, cell) for column in IMPOSSIBLE for cell in IMPOSSIBLE[column]])
def test_a_figure_that_cannot_be_is_refused_with_row_column_and_value(column: str, cell: str, tmp_path: Path) -> None:
    text = f'# title: My own cluster\nmodel,{column}\nresnet50_v1,\nresnet50_v1,"{cell}"\n'
    with pytest.raises(UserError, match=re.escape(f"mine.csv, row 4: {column}: {cell!r} is not")):
        study_of(tmp_path, text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("samples_per_second", "samples_per_secnd", "samples_per_secnd.*samples_per_second"),
        (",devices,", ",run_id,", "'run_id'"),
        ("# year", "# yaer", "'# yaer: 2026'.*'year'"),
        ("780,", "780,64,", "row 5: .*more cells"),
        ('two"', "two", "end of data"),
        (MINE[MINE.index("resnet") :], "", "no rows"),
        ("model", "\xff", "utf-8"),
    ],
)
def test_a_mistake_in_a_study_is_refused_in_one_line(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"mine.csv, .*{message}") as caught:
        study_of(tmp_path, MINE.replace(old, new, 1))
    assert "\n" not in str(caught.value)


def test_two_studies_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "theano_mpi.csv").write_text(MINE)
    with pytest.raises(UserError, match="theano_mpi"):
        published.load([tmp_path / "theano_mpi.csv"])


def test_nothing_is_spent_on_a_wrong_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.csv").write_text(MINE.replace("780", "fast"))
    arguments = ["--study", str(tmp_path / "mine.csv"), "--results", str(tmp_path / "results")]
    assert main(["run", *arguments]) == 2
    assert "samples_per_second: 'fast'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
