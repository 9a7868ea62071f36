"""The published figures against the sources' own tables, and the reading of users' studies."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pandas as pd
import pytest

from poc import published, report
from poc.__main__ import main
from poc.published import Study
from poc.values import UserError

# A change of a figure is made on purpose: after it was compared with the source, its digest is put here.
DIGESTS = {
    "beeva_poc_mxnet": "1e8bc39220f276da",
    "theano_mpi": "a821ae26dc815879",
    "keras_multi_gpu": "d7a66e4d289b4e08",
    "hacksa_horovod": "54c4f434fb8c1c4d",
    "pmls_caffe": "2b084f8f5cef7346",
}
STUDIES = published.load()
ROWS = [row for study in STUDIES for row in study.rows]


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


@pytest.mark.parametrize("study", DIGESTS)
def test_figures_are_those_that_were_compared_with_the_source(study: str) -> None:
    content = (Path(published.__file__).parent / f"{study}.csv").read_bytes()
    assert hashlib.sha256(content).hexdigest()[:16] == DIGESTS[study]


def test_only_rows_that_contradict_themselves_are_flagged() -> None:
    efficiency = "speed-up 1.8 / 2 devices is an efficiency of 0.900, printed 0.9115"
    assert {(row.machine, row.printed): row.flag for row in ROWS if row.flag} == {
        ("2", "256x1 (lr=0.05)"): "13.9 s per epoch is 3,597 samples/s, printed 2,600",
        ("1*", "512 (lr=0.05) | 1300 (1-97%)"): "8 devices, but the utilisation is of 1 devices",
        ("7gforce", "gpu count 2, batch_size 4096"): efficiency,
    }
    for row in STUDIES[0].rows:
        assert ("contradicts itself" in row.note) == bool(row.flag)


MINE = """\
# title: My own cluster
# year: 2026
model,devices,samples_per_second,batch_per_device,scaling,printed
resnet50_v1,1,400,64,weak,"a, one"
resnet50_v1,2,780,64,weak,"a, two"
"""


def study_of(folder: Path, text: str) -> Study:
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
    with pytest.raises(UserError, match=re.escape(f"mine.csv, row 4: {column} is {cell!r}; ")):
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
    assert "samples_per_second is 'fast'" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.csv"]
