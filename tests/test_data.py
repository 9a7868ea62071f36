"""CIFAR-10 from every source, RecordIO, the cache and the download."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import struct
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from poc import data
from poc.config import CIFAR10
from poc.data import recordio
from poc.data.cifar import RELEASES, Release
from poc.values import UserError
from tests.launch import HOME

TRAIN, VALIDATION = 15, 4
NOT_SERVED = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
PIXELS = np.random.default_rng(0).integers(0, 256, (TRAIN + VALIDATION, 32, 32, 3), np.uint8)
LABELS = np.arange(TRAIN + VALIDATION, dtype=np.uint8) % 10
ROWS = PIXELS.transpose(0, 3, 1, 2).reshape(len(PIXELS), -1)
"""An image per row: red plane, green plane, blue plane."""
NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
PARTS = [slice(first, first + 3) for first in (0, 3, 6, 9, 12)] + [slice(TRAIN, None)]


def text(content: str) -> bytes:
    """The pickle instruction for a short text of Python 2."""
    return b"U" + bytes([len(content)]) + content.encode()


def python_2_batch(rows: Any, labels: Any) -> bytes:
    """The official file of the Python version, instruction for instruction."""
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    dtype = b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09"
    shape = b"K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<i", rows.size) + rows.tobytes() + b"tb"
    fields = text("labels") + b"q\x04]q\x05(" + numbers + b"e" + text("data") + b"q\x06" + array + state
    return b"\x80\x02}q\x01(" + fields + b"u."


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


def part(kind: int, payload: bytes) -> bytes:
    """One part of a RecordIO record."""
    return struct.pack("<II", 0xCED7230A, kind << 29 | len(payload)) + payload + bytes(-len(payload) % 4)


def record(image: Any, label: float, suffix: str = ".png", labels: tuple[float, ...] = ()) -> bytes:
    """The payload that im2rec would write."""
    encoded = cv2.imencode(suffix, image[..., ::-1])[1].tobytes()
    header = struct.pack("<IfQQ", len(labels), label, 7, 0)
    return header + np.array(labels, "<f4").tobytes() + encoded


def record_files(suffix: str = ".png") -> dict[str, bytes]:
    records = [part(0, record(image, label, suffix)) for image, label in zip(PIXELS, LABELS)]
    return {"cifar10_train.rec": b"".join(records[:TRAIN]), "cifar10_val.rec": b"".join(records[TRAIN:])}


BINARY = {f"{n}.bin": np.column_stack([LABELS[p], ROWS[p]]).tobytes() for n, p in zip(NAMES, PARTS)}
PYTHON = {name: python_2_batch(ROWS[p], LABELS[p]) for name, p in zip(NAMES, PARTS)}
RECORDS = record_files()
UNPACKED = {f"cifar-10-batches-bin/{name}": content for name, content in BINARY.items()}
PYTHON_UNPACKED = {f"cifar-10-batches-py/{name}": content for name, content in PYTHON.items()}
TGZ, PYTHON_TGZ = RELEASES["cifar10"].archives
ARCHIVE = tar_of({"readme.html": b"x", **UNPACKED})
PYTHON_ARCHIVE = tar_of({**PYTHON_UNPACKED, "cifar-10-batches-py/batches.meta": b"x"})


def released(url: str = NOT_SERVED, archive: bytes = ARCHIVE) -> Release:
    """The release with this archive."""
    digest = hashlib.sha256(archive).hexdigest()
    return dataclasses.replace(RELEASES["cifar10"], url=url, sha256=digest, train=TRAIN, validation=VALIDATION)


ENTRY = f"cifar10-{released().sha256[:16]}"


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def load(source: Path | None, cache: Path, release: Release | None = None) -> Any:
    """The small CIFAR-10 of these tests."""
    return data.load(CIFAR10(), source=source, cache=cache, release=release or released())


@pytest.fixture(autouse=True)
def nothing_at_the_usual_places_and_no_pauses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MXNET_HOME", "KERAS_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))


def check(dataset: Any) -> None:
    """The data set holds `PIXELS` and `LABELS`, without loss."""
    assert dataset.name == "cifar10"
    for split, expected in ((dataset.train, slice(0, TRAIN)), (dataset.validation, slice(TRAIN, None))):
        np.testing.assert_array_equal(split.images, PIXELS[expected])
        np.testing.assert_array_equal(split.labels, LABELS[expected])
        assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int32)


def entries(cache: Path) -> list[str]:
    """Names in a cache, except its lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (UNPACKED, ""),
        (UNPACKED, "cifar-10-batches-bin"),
        ({"mine.tar.gz": ARCHIVE}, "mine.tar.gz"),
        (PYTHON_UNPACKED, "cifar-10-batches-py/data_batch_5"),
        # As torchvision leaves it, and MXNet, which packs the files anew.
        ({**PYTHON_UNPACKED, PYTHON_TGZ: PYTHON_ARCHIVE}, ""),
        ({**BINARY, TGZ: tar_of(BINARY)}, ""),
        (RECORDS, "cifar10_val.rec"),
        # Of several forms, the first that is complete.
        ({**record_files(".jpg"), "data_batch_1.bin": b"", TGZ: ARCHIVE}, ""),
    ],
)
def test_sources(tmp_path: Path, files: dict[str, bytes], source: str) -> None:
    check(load(write(tmp_path / "data", files) / source, tmp_path / "cache"))


DAMAGED = r"is truncated or damaged"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "CIFAR-10"),
        ({"data_batch_1.bin": b""}, "data_batch_2.bin is missing"),
        ({**BINARY, "data_batch_3.bin": BINARY["data_batch_3.bin"][:-1]}, "data_batch_3.bin"),
        ({**BINARY, "test_batch.bin": b"\x0a" + bytes(3072)}, "test_batch.bin has the label 10"),
        ({**BINARY, "test_batch.bin": bytes(3073)}, "15 training and 1 validation images"),
        ({**RECORDS, "cifar10_val.rec": RECORDS["cifar10_val.rec"][:-30]}, "truncated"),
        ({**RECORDS, "cifar10_val.rec": part(1, b"begun")}, "truncated"),
        ({**RECORDS, "cifar10_val.rec": b"junk" * 10}, "at byte 0"),
        ({**RECORDS, "cifar10_val.rec": part(0, record(PIXELS[0], float("nan")))}, "cifar10_val.rec has the label nan"),
        ({**RECORDS, "cifar10_train.rec": part(0, bytes(24) + b"junk")}, "cifar10_train.rec, record 0"),
        ({**RECORDS, "cifar10_train.rec": part(0, b"short")}, "header"),
        ({**RECORDS, "cifar10_train.rec": part(0, record(PIXELS[0, :9], 0))}, "32 x 9 pixels"),
        ({TGZ: ARCHIVE[:-10]}, DAMAGED),
        ({TGZ: ARCHIVE[:-1] + b"!"}, DAMAGED),
        ({TGZ: gzip.compress(gzip.decompress(ARCHIVE)[:20_000])}, DAMAGED),
        ({TGZ: tar_of({k: x for k, x in BINARY.items() if "3" not in k})}, "data_batch_3.bin is missing"),
        ({**PYTHON, "data_batch_2": PYTHON["data_batch_2"][:-1]}, "data_batch_2 is not a"),
        ({**PYTHON, "data_batch_2": python_2_batch(ROWS[:3], [0, 1, 10])}, "data_batch_2 has the label 10"),
        ({**PYTHON, "data_batch_2": python_2_batch(ROWS[:3], [0, 1])}, "data_batch_2 is not a"),
    ],
)
def test_a_damaged_source_is_one_line_and_leaves_nothing(tmp_path: Path, files: dict[str, bytes], problem: str) -> None:
    with pytest.raises(UserError, match=f"^data: [^\n]*{problem}[^\n]*$"):
        load(write(tmp_path / "data", files), tmp_path)
    assert entries(tmp_path) == ["data"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^cache: .*POC_CACHE"):
        load(write(tmp_path / "data", BINARY), tmp_path / "data" / "test_batch.bin" / "cache")


@pytest.mark.parametrize("lossy", ["cifar10_train.rec", "cifar10_val.rec"])
def test_jpeg_copies_are_another_data_set_than_the_originals(tmp_path: Path, lossy: str) -> None:
    originals = write(tmp_path / "originals", RECORDS)
    copies = write(tmp_path / "copies", {**RECORDS, lossy: record_files(".jpg")[lossy]})
    for _ in range(2):
        jpeg = load(copies, tmp_path / "cache")
        assert jpeg.name == "cifar10 (jpeg)"
        assert not np.array_equal(np.concatenate([jpeg.train.images, jpeg.validation.images]), PIXELS)
        np.testing.assert_array_equal(np.concatenate([jpeg.train.labels, jpeg.validation.labels]), LABELS)
        check(load(originals, tmp_path / "cache"))


@pytest.mark.parametrize("file", ["train_images.npy", "checksum"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, path.stat().st_size // 2)])
def test_images_are_decoded_once_memory_mapped_and_decoded_again_if_damaged(
    tmp_path: Path, damage: Any, file: str
) -> None:
    source, cache = write(tmp_path / "data", RECORDS), tmp_path / "cache"
    first = load(source, cache)
    stamps = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    dataset = load(source, cache)
    assert len(stamps) == 4
    assert stamps == {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert isinstance(dataset.train.images.base, np.memmap)
    (victim,) = cache.rglob(file)
    damage(victim)
    check(load(source, cache))
    assert load(source, cache).checksum == first.checksum


def test_the_same_images_are_the_same_data_set_in_every_form(tmp_path: Path) -> None:
    forms = (BINARY, {TGZ: ARCHIVE}, PYTHON, {PYTHON_TGZ: PYTHON_ARCHIVE}, RECORDS)
    folders = [write(tmp_path / str(number), files) for number, files in enumerate(forms)]
    loaded = [load(folder, tmp_path / f"cache{folder.name}") for folder in folders]
    with served(ARCHIVE) as url:
        loaded.append(load(None, tmp_path / "cache", released(url)))
    spec = CIFAR10(validate_on="held-out")
    loaded.append(data.load(spec, source=folders[0], cache=tmp_path / "0", release=released()))
    check(loaded[0])
    assert loaded[0].checksum
    assert len({dataset.data_id for dataset in loaded}) == 1


@pytest.mark.parametrize("place", [0, 1, 3073 * 3 - 1], ids=["label", "first value", "last value"])
@pytest.mark.parametrize("name", ["data_batch_5.bin", "test_batch.bin"])
def test_other_images_or_labels_are_another_data_set(name: str, place: int, tmp_path: Path) -> None:
    changed = bytearray(BINARY[name])
    changed[place] ^= 1
    first = load(write(tmp_path / "first", BINARY), tmp_path / "cache")
    second = load(write(tmp_path / "second", {**BINARY, name: bytes(changed)}), tmp_path / "cache")
    assert first.data_id != second.data_id


def test_files_that_mxnet_and_keras_left_are_used_unless_damaged(tmp_path: Path) -> None:
    mxnet, keras = tmp_path / "MXNET_HOME/datasets/cifar10", tmp_path / "KERAS_HOME/datasets"
    for folder in (mxnet, keras):
        folder.mkdir(parents=True)
    assert load(None, tmp_path / "cache").name == "synthetic"
    for number, place in enumerate(("cifar-10-batches-py-target", ".")):  # of Keras 3, and before
        write(keras / place, PYTHON_UNPACKED)
        check(load(None, tmp_path / f"cache {number}"))
    write(mxnet, {**BINARY, "test_batch.bin": b""})
    assert load(None, tmp_path / "cache").source == keras / "cifar-10-batches-py"
    write(mxnet, BINARY)
    assert load(None, tmp_path / "cache").source == mxnet
    assert load(write(tmp_path / "mine", RECORDS), tmp_path / "cache").source == tmp_path / "mine"


# Hostile files: a file of the Python version is a pickle, and an archive can name any path


@pytest.mark.parametrize("kind", ["call", "old call", "new call", "eval", "memo", "itself", "no end"])
def test_nothing_that_a_pickle_names_is_run(kind: str, tmp_path: Path) -> None:
    command = f"touch {tmp_path}/made"
    hostile = {
        "call": b"\x80\x02cposix\nsystem\n" + text(command) + b"\x85R.",
        "old call": f"(S'{command}'\niposix\nsystem\n.".encode(),
        "new call": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c" + text(command)[1:] + b"\x85R.",
        "eval": b"\x80\x02c__builtin__\neval\n" + text(f"open('{tmp_path}/made', 'w')") + b"\x85R.",
        "memo": b"\x80\x02}r\xff\xff\xff\xff.",  # its index would fill the memory
        "itself": b"\x80\x02]q\x01h\x01a.",
        "no end": b"\x80\x02}",
    }
    source = write(tmp_path / "data", {**PYTHON, "data_batch_2": hostile[kind]})
    with pytest.raises(UserError, match=r"^data: [^\n]*data_batch_2 [^\n]*$"):
        load(source, tmp_path)
    assert entries(tmp_path) == ["data"]


def test_an_archive_whose_paths_climb_writes_nothing_there(tmp_path: Path) -> None:
    prefixes = ("../../../", f"{tmp_path}/abroad/")
    files = {prefixes[i % 2] + name: x for i, (name, x) in enumerate({**BINARY, "passwd": b"x"}.items())}
    links = []
    for name, kind in (("test_batch.bin", tarfile.SYMTYPE), ("data_batch_1.bin", tarfile.FIFOTYPE)):
        links.append(tarfile.TarInfo(name))
        links[-1].type, links[-1].linkname = kind, "/etc/passwd"
    archive = tar_of(files, *links)
    source, release = write(tmp_path / "data", {TGZ: archive}), released(archive=archive)
    before = set(tmp_path.rglob("*"))
    check(load(source, tmp_path / "cache", release))
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "cache", *(tmp_path / "cache").rglob("*")}


def test_record_in_parts_and_with_several_labels() -> None:
    payload = record(PIXELS[0], 0.0, labels=(3.0, 4.0))
    # A writer cuts a payload where it contains the magic number, here in the identifiers; the reader puts it back.
    cut = b"".join(map(part, (1, 2, 3), (payload[:8], payload[12:16], payload[20:])))
    content = cut + part(0, payload) + part(0, record(PIXELS[1], 5.0, ".jpg"))
    images = [recordio.image(content[place], "a.rec") for place in recordio.records(content, "a.rec")]
    assert [label for label, _ in images] == [3, 3, 5]
    for _, encoded in images[:2]:
        np.testing.assert_array_equal(recordio.decode(encoded, "a.rec")[..., ::-1], PIXELS[0])


def test_an_image_that_would_fill_the_memory_is_refused_and_a_large_photo_is_not() -> None:
    small, large = (cv2.imencode(".png", np.zeros((side, side), np.uint8))[1].tobytes() for side in (8_000, 12_000))
    with pytest.raises(UserError, match=r"^data: a\.rec"):
        recordio.decode(large, "a.rec")
    assert recordio.decode(small, "a.rec").shape == (8_000, 8_000, 3)


@pytest.mark.parametrize("options", [[], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 4]])
def test_a_truncated_jpeg_is_refused_whatever_its_header_and_end(options: list[int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    jpeg = cv2.imencode(".jpg", pixels, options)[1].tobytes()
    thumbnail = b"\xff\xe1" + (len(jpeg) + 2).to_bytes(2, "big") + jpeg  # has a scan and an end of its own
    for whole in (jpeg, jpeg[:2] + thumbnail + jpeg[2:], jpeg + b"\xff\xda and a film"):
        assert recordio.decode(whole, "x").shape == (48, 48, 3)
    png = cv2.imencode(".png", pixels)[1].tobytes()
    recordio.check_end(png, "x")
    with pytest.raises(UserError, match="x is a truncated PNG"):
        recordio.check_end(png[:-12], "x")
    for start in (b"", thumbnail):
        for share in (0.5, 0.9, 0.999):
            with pytest.raises(UserError, match="x is"):
                recordio.decode(jpeg[:2] + start + jpeg[2 : int(share * len(jpeg))], "x")


def test_a_record_without_the_labels_that_its_header_announces_is_refused() -> None:
    one, cut = (part(0, struct.pack("<IfQQ", *header)) for header in ((0, 3.0, 7, 0), (1, 0.0, 7, 0)))
    more = part(0, struct.pack("<IfQQ", 1, 0.0, 7, 0) + np.float32(5).tobytes())
    labels = [recordio.label(content, slice(0, len(content)), "a.rec") for content in (one, more)]
    assert labels == [3.0, 5.0]
    with pytest.raises(UserError, match=r"a\.rec"):
        recordio.label(cut, slice(0, len(cut)), "a.rec")


def test_real_files(tmp_path: Path) -> None:
    source = os.environ.get("POC_DATA")
    if not source:
        pytest.skip("POC_DATA names no folder with CIFAR-10: POC_DATA=DIR tests/run.sh")
    dataset: Any = data.load(CIFAR10(), source=Path(source), cache=tmp_path)
    assert dataset.name in ("cifar10", "cifar10 (jpeg)")
    assert dataset.train.images.shape == (50_000, 32, 32, 3)
    assert np.bincount(dataset.train.labels).tolist() == [5_000] * 10
    assert np.bincount(dataset.validation.labels).tolist() == [1_000] * 10
    # CIFAR-10's mean colour is well known, red first.
    mean = dataset.train.images[::5].mean(axis=(0, 1, 2))
    np.testing.assert_allclose(mean, [125.3, 123.0, 113.9], atol=1.0)


# Download


@contextlib.contextmanager
def served(content: bytes, declared: int | None = None, pause: float = 0.0) -> Iterator[str]:
    """Serve `content` over HTTP, 1 KiB at a time."""

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
            yield f"http://127.0.0.1:{server.server_port}/{TGZ}"
        finally:
            server.shutdown()


def test_download_then_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(ARCHIVE) as url:
        check(load(None, tmp_path, released(url)))
    assert url in capsys.readouterr().err
    assert entries(tmp_path) == sorted([TGZ, ENTRY])
    check(load(None, tmp_path))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("content", "declared"),
    [
        (ARCHIVE[:-1] + b"!", None),
        (ARCHIVE[: len(ARCHIVE) // 2], None),
        (ARCHIVE[: len(ARCHIVE) // 2], len(ARCHIVE)),
        (None, None),
    ],
    ids=["altered", "truncated", "cut off", "no server"],
)
def test_a_failed_download_leaves_nothing_and_warns_of_synthetic_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, declared: int | None
) -> None:
    with served(content, declared) if content else contextlib.nullcontext(NOT_SERVED) as url:
        dataset = load(None, tmp_path, released(url))
    assert dataset.name == "synthetic"
    assert dataset.train.images.shape == (TRAIN, 32, 32, 3)
    assert len(dataset.validation) == VALIDATION
    _, warning = capsys.readouterr().err.splitlines()
    assert "SYNTHETIC" in warning
    assert url in warning
    assert entries(tmp_path) == []


def test_processes_share_a_cache(tmp_path: Path) -> None:
    with served(ARCHIVE, pause=0.01) as url:
        code = f"from tests.test_data import *; print(load(None, Path({str(tmp_path)!r}), released({url!r})).name)"
        command, pipe = [sys.executable, "-c", code], subprocess.PIPE
        processes = [subprocess.Popen(command, cwd=HOME, stdout=pipe, stderr=pipe, text=True) for _ in range(3)]
        outputs = [process.communicate(timeout=600) for process in processes]
    assert [out for out, _ in outputs] == ["cifar10\n"] * 3
    assert sum("Downloading" in err for _, err in outputs) == 1
    check(load(None, tmp_path))
