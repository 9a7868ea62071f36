"""Fuzzed input: a message of one line or a result, never another exception, and never a wait."""

import dataclasses
import gzip
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from poc import Linear, Recipe, Synthetic, config, published, report
from poc.__main__ import main
from poc.config import Setting
from poc.plan import plan
from poc.records import journal
from poc.report import chart
from poc.report.results import Results
from poc.values import UserError, from_plain, to_plain
from tests import test_data
from tests.builders import build, record_of
from tests.test_recipe import CPU

pytestmark = pytest.mark.faults
KINDS = "CIFAR10 Synthetic Linear SquareRoot Fixed Steps Muon AdamW SSP DistSync SGD"
THOROUGH = settings(max_examples=200)
FOLDER = Path(published.__file__).parent
STUDIES = {study.name: (FOLDER / f"{study.name}.csv").read_bytes() for study in published.load()}

numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, 1, 2, 128, -1, 10**30, 2**31]),
    st.floats(),
    st.sampled_from([0.05, math.nan, math.inf, -math.inf, 1e308, 1e-308]),
)
words = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["mxnet", "sgd", "device", "dist_sync", "float32", "auto", "cifar_resnet20_v2", "cosine", "node"]),
)
plain = st.one_of(st.none(), st.booleans(), numbers, words, st.binary(max_size=4), st.just(object))
rubbish = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(words, inner, max_size=2), st.sets(words)
    ),
    max_leaves=4,
)


def _in_one_line(error: UserError, *, names: str = "") -> None:
    assert str(error)
    assert "\n" not in str(error)
    assert names in str(error)


def fields_of(cls: Any) -> Any:
    """Generate some fields of a configuration class, with values of any kind, and now and then an unknown field."""
    names = [field.name for field in dataclasses.fields(cls)]
    return st.dictionaries(st.one_of(st.sampled_from(names), st.sampled_from(names), words), rubbish, max_size=3)


@st.composite
def made(draw: Any) -> Any:
    """Generate an option of a recipe from rubbish, if that is allowed."""
    cls = draw(st.sampled_from([getattr(config, name) for name in KINDS.split()]))
    try:
        return cls(**draw(fields_of(cls)))
    except UserError as error:
        _in_one_line(error)
        return draw(rubbish)


@THOROUGH
@given(
    st.dictionaries(
        st.sampled_from([*(field.name for field in dataclasses.fields(Setting)), "cases", "quick"]),
        st.one_of(rubbish, made()),
        max_size=4,
    )
)
@example({"batch_per_device": [1] * 1000, "lr": [0.1] * 1000})
@example({"seeds": 10**6})
@example({"devices": 10**9, "data": Synthetic(train=2**31 - 1)})
@example({"lr": Linear(base=1e12, per=1e-12), "kind": "cpu"})
def test_a_recipe_of_rubbish_is_refused_in_one_line_or_planned(fields: dict[str, Any]) -> None:
    try:
        runs = plan("rubbish", Recipe(**{"model": "cifar_resnet20_v2", **fields}), CPU)
    except UserError as error:
        _in_one_line(error)
        return
    assert len(runs) <= 10_000
    for one in runs:
        # What a plan holds can be written down, and read again.
        text = json.dumps(to_plain(one.run), allow_nan=False)
        assert from_plain(type(one.run), json.loads(text)).id == one.run.id
        assert one.seconds > 0


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**40), 2**40), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=6), inner, max_size=2)),
    max_leaves=3,
)


@settings(max_examples=20)
@given(places=st.lists(st.integers(0, 10**6), min_size=1, max_size=3), given_values=st.lists(json_values, min_size=3))
def test_a_record_with_a_value_of_another_kind_is_left_out_or_shown(
    places: list[int], given_values: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    broken, whole = (record.to_json() for record in (record_of(), record_of(run={"recipe": "whole"})))
    for place, changed in zip(places, given_values):
        leaves = list(leaves_of(broken))
        holder, key = leaves[place % len(leaves)]
        holder[key] = changed
    path = tmp_path_factory.getbasetemp() / "broken.jsonl"
    path.write_text(json.dumps(broken) + "\n" + json.dumps(whole) + "\n")
    try:
        records = journal.read([path])
    except UserError as error:  # of another schema
        _in_one_line(error)
        return
    table = build(*records)
    assert "whole" in set(table.recipe)
    results = Results(table, machine="test machine")
    with mock.patch.object(chart, "svg", str):
        report.write_pages(results, page=path.parent / "results.md", folder=path.parent)


def leaves_of(held: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over all places in nested lists and dicts, as container and key."""
    for key, inner in list(held.items() if isinstance(held, dict) else enumerate(held)):
        yield held, key
        if isinstance(inner, (dict, list)):
            yield from leaves_of(inner)


def stopped(*_: Any, **__: Any) -> Any:
    """Replace a run, which no fuzzed command should start."""
    raise UserError("it would have run")


@settings(max_examples=50)
@given(
    arguments=st.lists(
        st.one_of(
            st.sampled_from(["run", "plan", "report", "advise", "doctor", "models", "quick"]),
            st.sampled_from(["--quick", "--only", "--results", "--rounds", "--price", "--patience"]),
            st.sampled_from(["--data", "--steps", "-1", "nan", "1e999"]),
            st.sampled_from(["--set", "lr=0.1", "lr=", "lr=nan", "devices=2,4", "--all", "--target"]),
            st.text(max_size=8).filter(lambda word: "\x00" not in word),
        ),
        max_size=5,
    )
)
def test_options_of_rubbish_end_with_a_line_and_exit_code_2(
    arguments: list[str], tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing is run: what would be is stopped before.
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path_factory.getbasetemp())
        for name in ("run.run_sweep", "run.write_report", "doctor.doctor", "look.write_report", "advise.write_report"):
            patched.setattr(f"poc.cli.{name}", lambda *_, **__: 0)
        patched.setattr("poc.cli.advise.run_sweep", stopped)
        try:
            status = main(arguments)
        except SystemExit as ended:  # argparse's way
            status = int(ended.code or 0)
    said = capsys.readouterr()
    assert status in (0, 2)
    assert "Traceback" not in said.err
    if status == 2:
        assert said.err.strip()


@THOROUGH
@given(
    study=st.sampled_from([*STUDIES]),
    place=st.floats(0, 1),
    put=st.one_of(
        st.binary(max_size=6),
        st.sampled_from([b",", b'"', b"\n", b"nan", b"1e999", b"-1", b"\xff", b"\x00", b";", b"%", b"\r"]),
    ),
    cut=st.integers(0, 40),
)
def test_a_published_study_of_rubbish_is_refused_in_one_line_or_read(
    study: str, place: float, put: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, empty = (tmp_path_factory.getbasetemp() / name for name in (f"{study}.csv", "no studies"))
    whole = STUDIES[study]
    position = int(place * len(whole))
    path.write_bytes(whole[:position] + put + whole[position + cut :])
    try:
        assert [read.name for read in published.load([path], folder=empty)] == [study]
    except UserError as error:
        _in_one_line(error, names=path.name)


@THOROUGH
@given(
    kind=st.sampled_from(["records", "binaries", "archive", "tar", "pickles"]),
    place=st.floats(0, 1),
    put=st.binary(max_size=30),
    cut=st.one_of(st.integers(0, 30), st.just(10**6)),
)
def test_images_of_rubbish_are_refused_in_one_line_or_read(
    kind: str, place: float, put: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = {
        "records": test_data.record_files,
        "binaries": lambda: test_data.BINARY,
        "archive": lambda: {"cifar-10-binary.tar.gz": test_data.ARCHIVE},
        "tar": lambda: {"cifar-10-python.tar.gz": gzip.decompress(test_data.PYTHON_ARCHIVE)},
        "pickles": lambda: test_data.PYTHON,
    }[kind]()
    name = sorted(files)[0]
    position = int(place * len(files[name]))
    files[name] = files[name][:position] + put + files[name][position + cut :]
    if kind == "tar":
        files[name] = gzip.compress(files[name], 1)
    folder = test_data.write(tmp_path_factory.mktemp("images"), files)
    try:
        read = test_data.load(folder, folder / "cache", test_data.released())
        assert len(read.train) == test_data.TRAIN
    except UserError as error:
        _in_one_line(error, names=str(folder))
    finally:
        shutil.rmtree(folder)
