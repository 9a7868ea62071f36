"""Every source of CIFAR-10, RecordIO, the cache and the download."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import os
import pickle
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from poc import data
from poc.config import CIFAR10, Synthetic
from poc.data import recordio
from poc.data.sources import Release
from poc.values import UserError
from tests.launch import HOME

TRAIN, VALIDATION = 15, 4
NOT_SERVED = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
PIXELS = np.random.default_rng(0).integers(0, 256, (TRAIN + VALIDATION, 32, 32, 3), np.uint8)
LABELS = np.arange(TRAIN + VALIDATION, dtype=np.uint8) % 10


def binary_files() -> dict[str, bytes]:
    """Six files of 3, 3, 3, 3, 3 and 4 images, as the official ones: label, red plane, green plane, blue plane."""
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    rows = np.column_stack([LABELS, row(PIXELS)])
    return {name: part.tobytes() for name, part in zip(names, np.split(rows, range(3, 18, 3)))}


def row(image: Any) -> Any:
    """The values of images (n, 32, 32, 3) as CIFAR-10's files have them: red plane, green plane, blue plane."""
    return image.transpose(0, 3, 1, 2).reshape(len(image), -1)


def text(given: str) -> bytes:
    """The instruction for a short text of Python 2's."""
    return b"U" + bytes([len(given)]) + given.encode()


def python_2_batch(rows: Any, labels: Any, shape: bytes | None = None) -> bytes:
    """What Python 2 wrote for a batch of the official Python version, instruction for instruction."""
    counted = [b"K" + bytes([label]) for label in labels]
    dtype = b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    shape = shape or b"K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    fields = [
        text("batch_label") + b"q\x02" + text("training batch 1 of 5") + b"q\x03",
        text("labels") + b"q\x04]q\x05(" + b"".join(counted) + b"e",
        text("data") + b"q\x06" + array + state,
        text("filenames") + b"q\x0c]q\x0d(" + text("leptodactylus_pentadactylus_s_000004.png") * len(rows) + b"e",
    ]
    return b"\x80\x02}q\x01(" + b"".join(fields) + b"u."


def python_3_batch(rows: Any, labels: Any) -> bytes:
    """What Python 3 writes for the same, with bytes for Python 2 to read."""
    return pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2)


def python_files(write_batch: Any = python_2_batch) -> dict[str, bytes]:
    """The same as `binary_files` in the Python version."""
    parts = zip(*(np.split(values, range(3, 18, 3)) for values in (row(PIXELS), LABELS)))
    return {name.removesuffix(".bin"): write_batch(*part) for name, part in zip(binary_files(), parts)}


def tar_of(files: dict[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A compressed archive, the same whenever it is made."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in others:
            tar.addfile(member)
    return gzip.compress(buffer.getvalue(), mtime=0)


ARCHIVE_NAME = "cifar-10-binary.tar.gz"
ARCHIVE = tar_of({"readme.html": b"x", **{f"cifar-10-batches-bin/{name}": x for name, x in binary_files().items()}})


def released(url: str = NOT_SERVED, archive: bytes = ARCHIVE) -> Release:
    """The release with this archive."""
    return Release(url, hashlib.sha256(archive).hexdigest(), TRAIN, VALIDATION)


PYTHON_NAME = "cifar-10-python.tar.gz"
PYTHON_ARCHIVE = tar_of(
    {f"cifar-10-batches-py/{name}": x for name, x in {**python_files(), "batches.meta": b"x"}.items()}
)
ENTRY = f"cifar10-{released().sha256[:16]}"


def part(kind: int, payload: bytes) -> bytes:
    """One part of a RecordIO record."""
    return struct.pack("<II", 0xCED7230A, kind << 29 | len(payload)) + payload + bytes(-len(payload) % 4)


def record(image: Any, label: float, suffix: str = ".png", labels: tuple[float, ...] = ()) -> bytes:
    """The payload that im2rec would write."""
    encoded = cv2.imencode(suffix, image[..., ::-1])[1].tobytes()
    header = struct.pack("<IfQQ", len(labels), label, 7, 0)
    return header + np.array(labels, "<f4").tobytes() + encoded


def record_files(suffix: str = ".png") -> dict[str, bytes]:
    """`cifar10_train.rec` and `cifar10_val.rec`."""
    whole = [part(0, record(image, label, suffix)) for image, label in zip(PIXELS, LABELS)]
    return {"cifar10_train.rec": b"".join(whole[:TRAIN]), "cifar10_val.rec": b"".join(whole[TRAIN:])}


def black_png(side: int) -> bytes:
    """A small file of `side` x `side` pixels, as a payload."""
    return bytes(24) + cv2.imencode(".png", np.zeros((side, side), np.uint8))[1].tobytes()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes the files and returns the folder."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def load(source: Path | None, cache: Path, release: Release | None = None) -> data.Dataset:
    """The small CIFAR-10 of these tests."""
    return data.load(CIFAR10(), source=source, cache=cache, release=release or released())


@pytest.fixture(autouse=True)
def nothing_at_the_usual_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MXNET_HOME", "KERAS_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def check(dataset: Any) -> None:
    """The data set holds `PIXELS` and `LABELS`, without loss."""
    assert dataset.name == "cifar10"
    for split, expected in ((dataset.train, slice(0, TRAIN)), (dataset.validation, slice(TRAIN, None))):
        np.testing.assert_array_equal(split.images, PIXELS[expected])
        np.testing.assert_array_equal(split.labels, LABELS[expected])
        assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int32)


def left_in(cache: Path) -> list[str]:
    """What a cache holds besides its lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


# Sources

BINARIES, RECORDS = binary_files(), record_files()
UNPACKED = {f"cifar-10-batches-bin/{name}": content for name, content in BINARIES.items()}
PYTHON = {f"cifar-10-batches-py/{name}": content for name, content in python_files().items()}


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (BINARIES, ""),
        (UNPACKED, ""),
        (UNPACKED, "cifar-10-batches-bin"),
        (UNPACKED, "cifar-10-batches-bin/test_batch.bin"),
        ({ARCHIVE_NAME: ARCHIVE}, ""),
        ({"mine.tar.gz": ARCHIVE}, "mine.tar.gz"),
        (python_files(), ""),
        (python_files(python_3_batch), ""),
        (PYTHON, ""),
        (PYTHON, "cifar-10-batches-py"),
        (PYTHON, "cifar-10-batches-py/data_batch_5"),
        ({PYTHON_NAME: PYTHON_ARCHIVE}, ""),
        ({PYTHON_NAME: PYTHON_ARCHIVE}, PYTHON_NAME),
        # What torchvision leaves, and MXNet, which packs the files anew.
        ({**PYTHON, PYTHON_NAME: PYTHON_ARCHIVE}, ""),
        ({ARCHIVE_NAME: tar_of(BINARIES)}, ""),
        ({**BINARIES, ARCHIVE_NAME: tar_of(BINARIES)}, ""),
        (RECORDS, ""),
        (RECORDS, "cifar10_train.rec"),
        (RECORDS, "cifar10_val.rec"),
        # Of several formats the first that is whole.
        ({**record_files(".jpg"), "data_batch_1.bin": b"", ARCHIVE_NAME: ARCHIVE}, ""),
        # A file stands for its own format only.
        ({**dict.fromkeys(BINARIES, b""), **RECORDS}, "cifar10_val.rec"),
    ],
)
def test_sources(tmp_path: Path, files: dict[str, bytes], source: str) -> None:
    check(load(write(tmp_path / "data", files) / source, tmp_path / "cache"))


@pytest.mark.parametrize("lossy", ["cifar10_train.rec", "cifar10_val.rec"])
def test_jpeg_records_are_called_so_and_stay_apart_from_the_originals(tmp_path: Path, lossy: str) -> None:
    originals = write(tmp_path / "originals", RECORDS)
    copies = write(tmp_path / "copies", {**RECORDS, lossy: record_files(".jpg")[lossy]})
    for _ in range(2):
        jpeg: Any = load(copies, tmp_path / "cache")
        assert jpeg.name == "cifar10 (jpeg)"
        pixels = np.concatenate([jpeg.train.images, jpeg.validation.images])
        assert not np.array_equal(pixels, PIXELS)
        np.testing.assert_array_equal(np.concatenate([jpeg.train.labels, jpeg.validation.labels]), LABELS)
        check(load(originals, tmp_path / "cache"))


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, path.stat().st_size // 2)])
def test_decoded_once_memory_mapped_and_made_again_where_damaged(tmp_path: Path, damage: Any) -> None:
    source, cache = write(tmp_path / "data", RECORDS), tmp_path / "cache"
    load(source, cache)
    stamps = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    dataset: Any = load(source, cache)
    assert len(stamps) == 4
    assert stamps == {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert isinstance(dataset.train.images.base, np.memmap)
    (victim,) = cache.rglob("train_images.npy")
    damage(victim)
    check(load(source, cache))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "CIFAR-10"),
        ({"data_batch_1.bin": b""}, "data_batch_2.bin is missing"),
        ({"cifar10_train.rec": b""}, "cifar10_val.rec is missing"),
        ({**BINARIES, "data_batch_3.bin": BINARIES["data_batch_3.bin"][:-1]}, "data_batch_3.bin"),
        ({**BINARIES, "data_batch_3.bin": b""}, "data_batch_3.bin"),
        ({**BINARIES, "test_batch.bin": b"\x0a" + bytes(3072)}, "test_batch.bin has the label 10"),
        ({**BINARIES, "test_batch.bin": bytes(3073)}, "15 training and 1 validation images"),
        ({**RECORDS, "cifar10_val.rec": RECORDS["cifar10_val.rec"][:-30]}, "truncated in the record"),
        ({**RECORDS, "cifar10_val.rec": RECORDS["cifar10_val.rec"] + part(0, b"")[:6]}, "truncated in the record"),
        ({**RECORDS, "cifar10_val.rec": part(1, b"begun")}, "truncated in its last record"),
        ({**RECORDS, "cifar10_val.rec": b"junk" * 10}, "not RecordIO at byte 0"),
        ({**RECORDS, "cifar10_val.rec": b""}, "and 0 validation images"),
        ({**RECORDS, "cifar10_val.rec": part(0, record(PIXELS[0], float("nan")))}, "cifar10_val.rec has the label nan"),
        ({**RECORDS, "cifar10_train.rec": part(0, bytes(24) + b"junk")}, "cifar10_train.rec, record 0 .*decoded"),
        ({**RECORDS, "cifar10_train.rec": part(0, b"short")}, "no image header"),
        ({**RECORDS, "cifar10_train.rec": part(0, record(PIXELS[0, :9], 0))}, "32 x 9 pixels"),
        ({ARCHIVE_NAME: ARCHIVE[:-10]}, "cifar-10-binary.tar.gz is truncated or damaged"),
        ({ARCHIVE_NAME: ARCHIVE[:-1] + b"!"}, "cifar-10-binary.tar.gz is truncated or damaged"),
        ({ARCHIVE_NAME: gzip.compress(b"x" * 1000)}, "cifar-10-binary.tar.gz is truncated or damaged"),
        (
            {ARCHIVE_NAME: gzip.compress(gzip.decompress(ARCHIVE)[:20_000])},
            "cifar-10-binary.tar.gz is truncated or damaged",
        ),
        ({ARCHIVE_NAME: gzip.compress(bytes(2**28), 1)}, "data_batch_1.bin is missing"),
        (
            {ARCHIVE_NAME: tar_of({**BINARIES, "data_batch_3.bin": b""})},
            "cifar-10-binary.tar.gz/data_batch_3.bin has 0",
        ),
        (
            {ARCHIVE_NAME: tar_of({k: x for k, x in BINARIES.items() if "3" not in k})},
            "data_batch_3.bin is missing",
        ),
        ({PYTHON_NAME: PYTHON_ARCHIVE[:-10]}, "cifar-10-python.tar.gz is truncated or damaged"),
        ({**python_files(), "data_batch_2": python_files()["data_batch_2"][:-1]}, "data_batch_2 is not a"),
        ({**python_files(), "data_batch_2": b""}, "data_batch_2 is not a"),
        (
            {**python_files(), "data_batch_2": python_2_batch(row(PIXELS[:3]), [0, 1, 10])},
            "data_batch_2 has the label 10",
        ),
        ({**python_files(), "data_batch_2": python_2_batch(row(PIXELS[:3]), [0, 1])}, "data_batch_2 is not a"),
        ({**python_files(), "data_batch_2": python_2_batch(row(PIXELS[:2]), [0, 1])}, "14 training and 4"),
        ({name: x for name, x in python_files().items() if name != "test_batch"}, "test_batch is missing"),
    ],
)
def test_source_that_is_damaged(tmp_path: Path, files: dict[str, bytes], named: str) -> None:
    with pytest.raises(UserError, match=f"^data: [^\n]*{named}[^\n]*$"):
        load(write(tmp_path / "data", files), tmp_path)
    assert left_in(tmp_path) == ["data"]


def ids(*loaded: data.Dataset) -> set[Any]:
    """Their identities; each has a checksum."""
    assert all(dataset.checksum for dataset in loaded)
    return {dataset.data_id for dataset in loaded}


def test_the_same_images_are_the_same_data_set_whatever_form_they_came_in(tmp_path: Path) -> None:
    forms = (BINARIES, {ARCHIVE_NAME: ARCHIVE}, python_files(), {PYTHON_NAME: PYTHON_ARCHIVE}, RECORDS)
    forms = (*forms, {ARCHIVE_NAME: tar_of({**BINARIES, "more": b"x"})})
    folders = [write(tmp_path / str(number), files) for number, files in enumerate(forms)]
    assert len(ids(*(load(folder, tmp_path / f"cache{folder.name}") for folder in folders))) == 1
    with served(ARCHIVE) as url:
        downloaded = load(None, tmp_path / "cache", released(url))
    held_out = data.load(CIFAR10(validate_on="held-out"), source=folders[0], cache=tmp_path / "0", release=released())
    assert ids(downloaded, held_out) == ids(load(folders[0], tmp_path / "cache"))


@pytest.mark.parametrize("place", [0, 1, 3073 * 3 - 1], ids=["label", "first value", "last value"])
@pytest.mark.parametrize("name", ["data_batch_5.bin", "test_batch.bin"])
def test_images_or_labels_that_differ_anywhere_are_another_data_set(name: str, place: int, tmp_path: Path) -> None:
    changed = bytearray(BINARIES[name])
    changed[place] ^= 1
    first = load(write(tmp_path / "first", BINARIES), tmp_path / "cache")
    second = load(write(tmp_path / "second", {**BINARIES, name: bytes(changed)}), tmp_path / "cache")
    copies = load(write(tmp_path / "copies", record_files(".jpg")), tmp_path / "cache")
    assert len(ids(first, second, copies)) == 3


def test_the_checksum_is_kept_with_what_was_decoded_and_an_older_entry_gets_one(tmp_path: Path) -> None:
    source = write(tmp_path / "data", BINARIES)
    first = load(source, tmp_path / "cache")
    (kept,) = tmp_path.glob("cache/*/checksum")
    for content in ("", "cut off"):
        kept.write_text(content)
        assert load(source, tmp_path / "cache").checksum == kept.read_text() == first.checksum
    kept.unlink()
    assert load(source, tmp_path / "cache").checksum == kept.read_text() == first.checksum
    kept.write_text("0123456789abcdef")  # not worked out again
    assert load(source, tmp_path / "cache").checksum == "0123456789abcdef"


def test_synthetic_images_are_known_by_their_recipe(tmp_path: Path) -> None:
    dataset = data.load(Synthetic(train=10, validation=10), source=None, cache=tmp_path)
    assert dataset.data_id == ("synthetic", "")


def test_what_mxnet_and_keras_left_is_used_where_nothing_is_given_and_what_is_damaged_is_not(tmp_path: Path) -> None:
    mxnet, keras = tmp_path / "MXNET_HOME/datasets/cifar10", tmp_path / "KERAS_HOME/datasets"
    for folder in (mxnet, keras):
        folder.mkdir(parents=True)
    assert load(None, tmp_path / "cache").name == "synthetic"
    write(keras, PYTHON)
    dataset = load(None, tmp_path / "cache")
    check(dataset)
    assert dataset.source == keras / "cifar-10-batches-py"
    write(mxnet, {**BINARIES, "test_batch.bin": b""})
    assert load(None, tmp_path / "cache").source == keras / "cifar-10-batches-py"
    write(mxnet, BINARIES)
    assert load(None, tmp_path / "cache").source == mxnet
    assert load(write(tmp_path / "mine", RECORDS), tmp_path / "cache").source == tmp_path / "mine"


# Pickles: a file is one, and whoever gives it may have written anything into it


def hostile(folder: Path) -> dict[str, bytes]:
    """Pickles that would make a file, call what NumPy's own pickles may call, or take all memory."""

    def named(name: bytes, arguments: bytes = b")") -> bytes:
        return b"\x80\x02c" + name + b"\n" + arguments + b"R."

    command = f"touch {folder}/made"
    rows = row(PIXELS[:3])
    array = b"cnumpy.core.multiarray\n_reconstruct\n"
    huge = b"\x8a\x06" + (10**13).to_bytes(6, "little")
    return {
        "system": named(b"posix\nsystem", text(command) + b"\x85"),
        "old system": f"(S'{command}'\niposix\nsystem\n.".encode(),
        "new system": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c"
        + bytes([len(command)])
        + command.encode()
        + b"\x85R.",
        "eval": named(b"__builtin__\neval", text("open('made', 'w')") + b"\x85"),
        "array": named(b"numpy\nndarray", huge + b"\x85\x85"),
        "encoded": named(b"_codecs\nencode", text("x") + text("bz2") + b"\x86"),
        "large array": b"\x80\x02" + array + b"cnumpy\nndarray\n" + huge + b"\x85U\x01b\x87R.",
        "large shape": python_2_batch(rows, [0, 1, 2], b"J\xff\xff\xff\x7fM\x00\x0c\x86"),
        "negative shape": python_2_batch(rows, [0, 1, 2], b"J\xfe\xff\xff\xffM\x00\x0c\x86"),
        "large memo": b"\x80\x02}r\xff\xff\xff\xff.",
        "large text": b"\x80\x02T\xff\xff\xff\x7f.",
        "large bytes": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b".",
        "itself": b"\x80\x02]q\x01h\x01a.",
        "itself as a name": b"\x80\x02}q\x01h\x01K\x01s.",
        "nothing left": b"\x80\x02R.",
        "state of a list": b"\x80\x02]}b.",
        "no end": b"\x80\x02}",
        "text": b"hello",
    }


@pytest.mark.parametrize("name", hostile(Path()))
@pytest.mark.parametrize("packed", [False, True], ids=["folder", "archive"])
def test_nothing_in_a_pickle_is_run_or_takes_memory(name: str, packed: bool, tmp_path: Path) -> None:
    files = {**python_files(), "data_batch_2": hostile(tmp_path)[name]}
    source = write(tmp_path / "data", {PYTHON_NAME: tar_of(files)} if packed else files)
    before = set(tmp_path.iterdir())
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"^data: [^\n]*data_batch_2 [^\n]*$"):
            load(source, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert set(tmp_path.iterdir()) - before == {tmp_path / "lock"}


def test_a_pickle_that_asks_for_something_else_is_told_what(tmp_path: Path) -> None:
    files = {**python_files(), "data_batch_2": hostile(tmp_path)["system"]}
    with pytest.raises(UserError, match="posix system"):
        load(write(tmp_path / "data", files), tmp_path)


def test_an_archive_that_would_fill_the_memory_is_left_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poc.data.cifar10._LARGEST_ARCHIVE", 2**21)
    source = write(tmp_path / "data", {ARCHIVE_NAME: gzip.compress(bytes(2**26))})
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="more than 2 MiB"):
            load(source, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_an_archive_whose_paths_climb_writes_nothing_there(tmp_path: Path) -> None:
    prefixes = ("../../../", f"{tmp_path}/abroad/")
    files = {prefixes[i % 2] + name: x for i, (name, x) in enumerate({**BINARIES, "passwd": b"x"}.items())}
    links = []
    for name, kind in (("test_batch.bin", tarfile.SYMTYPE), ("data_batch_1.bin", tarfile.FIFOTYPE)):
        links.append(tarfile.TarInfo(name))
        links[-1].type, links[-1].linkname = kind, "/etc/passwd"
    archive = tar_of(files, *links)
    source, release = write(tmp_path / "data", {ARCHIVE_NAME: archive}), released(archive=archive)
    before = set(tmp_path.rglob("*"))
    check(load(source, tmp_path / "cache", release))
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "cache", *(tmp_path / "cache").rglob("*")}
    # In the cache an archive is what a download would be.
    check(load(None, tmp_path / "cache", release))


def test_source_that_does_not_exist_and_cache_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere [^;]*does not exist; .*data_batch_1\.bin"):
        load(tmp_path / "nowhere", tmp_path)
    with pytest.raises(UserError, match=r"^cache: .*test_batch.bin.*POC_CACHE"):
        load(write(tmp_path / "data", BINARIES), tmp_path / "data" / "test_batch.bin" / "cache")


def test_record_in_parts_and_with_several_labels() -> None:
    payload = record(PIXELS[0], 0.0, labels=(3.0, 4.0))
    # A writer cuts a payload wherever it holds the magic number, here in the identifiers; the reader puts it back.
    cut = b"".join(map(part, (1, 2, 3), (payload[:8], payload[12:16], payload[20:])))
    content = cut + part(0, payload) + part(0, record(PIXELS[1], 5.0, ".jpg"))
    images = [recordio.image(content[place], "a.rec") for place in recordio.records(content, "a.rec")]
    assert [(image.label, image.lossy) for image in images] == [(3, False), (3, False), (5, True)]
    for image in images[:2]:
        np.testing.assert_array_equal(image.pixels[..., ::-1], PIXELS[0])


def test_an_image_that_would_fill_the_memory_is_not_decoded_and_a_large_one_is() -> None:
    with pytest.raises(UserError, match=r"^data: a\.rec .*decoded"):
        recordio.image(part(0, black_png(12_000)), "a.rec")
    assert recordio.image(part(0, black_png(8_000)), "a.rec").pixels.shape == (8_000, 8_000, 3)


def test_real_files(tmp_path: Path) -> None:
    source = os.environ.get("POC_DATA")
    if not source:
        pytest.skip("POC_DATA names no folder with CIFAR-10: POC_DATA=DIR tests/run.sh")
    dataset: Any = data.load(CIFAR10(), source=Path(source), cache=tmp_path)
    assert dataset.name in ("cifar10", "cifar10 (jpeg)")
    assert dataset.train.images.shape == (50_000, 32, 32, 3)
    assert np.bincount(dataset.train.labels).tolist() == [5_000] * 10
    assert np.bincount(dataset.validation.labels).tolist() == [1_000] * 10
    # The mean colour that the study subtracts is ImageNet's; CIFAR-10's own is well known, red first.
    mean = dataset.train.images[::5].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(mean, [125.3, 123.0, 113.9], atol=1.0)


# Download


@contextlib.contextmanager
def served(content: bytes, declared: int | None = None, pause: float = 0.0) -> Iterator[str]:
    """Serves `content` over HTTP, 1 KiB at a time."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content) if declared is None else declared))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                for start in range(0, len(content), 1024):
                    self.wfile.write(content[start : start + 1024])
                    time.sleep(pause)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{ARCHIVE_NAME}"
        finally:
            server.shutdown()


def test_download_then_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(ARCHIVE) as url:
        check(load(None, tmp_path, released(url)))
    assert capsys.readouterr().err.startswith(f"Downloading CIFAR-10 from {url} ")
    assert left_in(tmp_path) == [ENTRY]
    check(load(None, tmp_path))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "declared", "why"),
    [
        (ARCHIVE[:-1] + b"!", None, "hash"),
        (ARCHIVE[: len(ARCHIVE) // 2], None, "hash"),
        (ARCHIVE[: len(ARCHIVE) // 2], len(ARCHIVE), ""),
        (None, None, "Connection"),
    ],
    ids=["altered", "truncated", "cut off", "no server"],
)
def test_failed_download_leaves_nothing_and_says_synthetic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, declared: int | None, why: str
) -> None:
    with served(content, declared) if content else contextlib.nullcontext(NOT_SERVED) as url:
        dataset: Any = load(None, tmp_path, released(url))
    assert dataset.name == "synthetic"
    assert dataset.train.images.shape == (TRAIN, 32, 32, 3)
    assert len(dataset.validation) == VALIDATION
    _, warning = capsys.readouterr().err.splitlines()
    assert "SYNTHETIC" in warning
    assert url in warning
    assert why in warning
    assert left_in(tmp_path) == []


def loader(cache: Path, url: str) -> subprocess.Popen[str]:
    """A process that loads CIFAR-10."""
    code = f"from tests.test_data import *; print(load(None, Path({str(cache)!r}), released({url!r})).name)"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    return subprocess.Popen(command, cwd=HOME, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_killed_download_is_not_taken_for_good(tmp_path: Path) -> None:
    def has_begun() -> bool:
        # pooch tries the folder with an empty file that is gone the next moment.
        with contextlib.suppress(FileNotFoundError):
            return any(path.stat().st_size for path in tmp_path.glob("incomplete/*"))
        return False

    # Long enough that it cannot end before it is killed.
    with served(ARCHIVE * 1000, pause=0.002) as url:
        process = loader(tmp_path, url)
        while not has_begun():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert left_in(tmp_path) == ["incomplete"]
    with served(ARCHIVE) as url:
        check(load(None, tmp_path, released(url)))
    assert left_in(tmp_path) == [ENTRY]


def test_processes_share_a_cache(tmp_path: Path) -> None:
    with served(ARCHIVE, pause=0.01) as url:
        processes = [loader(tmp_path, url) for _ in range(3)]
        outputs = [process.communicate(timeout=600) for process in processes]
    assert [out for out, _ in outputs] == ["cifar10\n"] * 3
    assert sum("Downloading" in err for _, err in outputs) == 1
    check(load(None, tmp_path))
