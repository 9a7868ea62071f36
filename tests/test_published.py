"""The published figures, and the reading of users' studies."""

import re
from pathlib import Path

import pytest

from poc import published
from poc.published import Study, prices
from poc.records.row import Row
from poc.report.sections import details
from poc.values import UserError
from tests.conftest import refused
from tests.pages import results_of

STUDIES = published.load()
ROWS = [row for study in STUDIES for row in study.rows]


def of_study(study: str) -> list[Row]:
    return [row for row in ROWS if row.study == study]


def test_a_batch_of_the_keras_study_is_per_gpu_and_its_address_is_of_one_version() -> None:
    rows = [row for row in of_study("keras_multi_gpu") if row.model == "keras_cifar10_cnn"]
    assert len(rows) == 18
    for row in rows:
        batch = int(row.printed.rpartition(" ")[2])
        assert (row.batch_per_device, row.global_batch, row.scaling) == (batch, batch * row.devices, "weak")
    (address,) = (study.address for study in STUDIES if study.name == "keras_multi_gpu")
    assert re.search(r"/blob/[0-9a-f]{40}/", address)


def test_a_machine_of_azure_is_known_by_its_full_name_too() -> None:
    known = prices.load({})
    short = [name for name in known if name.startswith("NC")]
    assert [known.of(f"Standard_{name}") for name in short] == [known[name] for name in short]


def test_seconds_and_speeds_of_the_main_study_that_differ_by_more_than_a_tenth_are_flagged() -> None:
    timed = [row for row in of_study("beeva_poc_mxnet") if row.samples_per_second and row.seconds_per_epoch]
    for row in timed:
        differs = abs(50_000 / row.seconds_per_epoch / row.samples_per_second - 1) > 0.1
        assert differs <= ("samples_per_second" in row.contradicts), row.printed
    assert len(timed) > 20


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
    results = results_of(studies=[mine])
    assert "64 x 2 | 780" in str(details.studies(results))
    assert list(results.table.model) == ["resnet50_v1"] * 2
    assert results.table.efficiency_throughput.iloc[1] == pytest.approx(780 / 400 / 2)


def test_a_study_is_read_as_spreadsheets_and_pandas_write_it(tmp_path: Path) -> None:
    text = '\xef\xbb\xbf# title: Mine,,,\r\n"# authors: A, B",,,\r\n,,,\r\n\r\n'
    text += "model,parameters,dataset,devices,accuracy,\r\n"
    study = study_of(tmp_path, text + "m,2.35E+07,CIFAR-10,2.0,8.1e-1,\r\n,,,,\r\n\r\n")
    (row,) = study.rows
    assert (study.title, study.authors) == ("Mine", "A, B")
    assert (row.model, row.parameters, row.dataset, row.devices, row.accuracy) == ("m", 23_500_000, "cifar10", 2, 0.81)


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
    with refused(f"mine.csv, .*{message}"):
        study_of(tmp_path, MINE.replace(old, new, 1))


def test_two_studies_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "theano_mpi.csv").write_text(MINE)
    with pytest.raises(UserError, match="theano_mpi"):
        published.load([tmp_path / "theano_mpi.csv"])
