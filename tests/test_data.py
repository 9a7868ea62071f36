"""Every source of CIFAR-10, the cache, synthetic images, augmentation, shards and prefetching."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import itertools
import os
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc import data
from poc.data import recordio
from poc.recipe import CIFAR10, Synthetic, synthetic
from poc.values import UserError

TRAIN, VALIDATION = 15, 4
PLAIN = CIFAR10(crop=32, pad=0, mirror=False, jitter=False)
NOT_SERVED = "http://127.0.0.1:9/cifar-10-binary.tar.gz"
RELEASE = data.Release(NOT_SERVED, "0" * 64, TRAIN, VALIDATION)


def some_images(count: int, seed: int = 0) -> data.Images:
    """Noise in CIFAR-10's shape, labels 0, 1, 2, ..."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)
    return data.Images(pixels, (np.arange(count) % 10).astype(np.int32))


ALL = some_images(TRAIN + VALIDATION)


def binary(images: data.Images) -> bytes:
    """The official layout: label, red plane, green plane, blue plane."""
    return b"".join(
        bytes([label]) + image[..., 0].tobytes() + image[..., 1].tobytes() + image[..., 2].tobytes()
        for image, label in zip(images.images, images.labels)
    )


def binary_files() -> dict[str, bytes]:
    """Six files of 3, 3, 3, 3, 3 and 4 images."""
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    starts = [0, 3, 6, 9, 12, 15, 19]
    return {
        name: binary(data.Images(ALL.images[a:b], ALL.labels[a:b])) for name, a, b in zip(names, starts, starts[1:])
    }


def archive() -> bytes:
    """The official archive's layout."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in {"readme.html": b"x", **binary_files()}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


ARCHIVE = archive()
ARCHIVE_SHA256 = hashlib.sha256(ARCHIVE).hexdigest()


def released(url: str = NOT_SERVED) -> data.Release:
    """The release whose archive is `ARCHIVE`."""
    return data.Release(url, ARCHIVE_SHA256, TRAIN, VALIDATION)


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
    whole = [part(0, record(image, label, suffix)) for image, label in zip(ALL.images, ALL.labels)]
    return {"cifar10_train.rec": b"".join(whole[:TRAIN]), "cifar10_val.rec": b"".join(whole[TRAIN:])}


def image_bomb(side: int) -> bytes:
    """A PNG of a few kilobytes with `side` x `side` pixels, all black."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + -(-side // 8)) * side), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes the files and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def load(source: Path | None, cache: Path, release: data.Release = RELEASE) -> data.Dataset:
    """CIFAR-10 with no word of warning."""
    return data.load(PLAIN, source=source, cache=cache, release=release, warn=pytest.fail)


def check_pixels(dataset: data.Dataset) -> None:
    """The data set holds `ALL`."""
    assert dataset.classes == 10
    for images, expected in ((dataset.train, slice(0, TRAIN)), (dataset.validation, slice(TRAIN, None))):
        np.testing.assert_array_equal(images.images, ALL.images[expected])
        np.testing.assert_array_equal(images.labels, ALL.labels[expected])
        assert images.images.dtype == np.uint8
        assert images.labels.dtype == np.int32


def left_in(cache: Path) -> list[str]:
    """What a cache holds besides its lock."""
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


# Sources


@pytest.mark.parametrize("place", ["", "cifar-10-batches-bin", "cifar-10-batches-bin/test_batch.bin"])
def test_official_binary_files(tmp_path: Path, place: str) -> None:
    write(tmp_path / "data" / "cifar-10-batches-bin" if place else tmp_path / "data", binary_files())
    source = tmp_path / "data" / place if place.endswith(".bin") else tmp_path / "data"
    dataset = load(source, tmp_path / "cache")
    assert dataset.name == "cifar10"
    check_pixels(dataset)


@pytest.mark.parametrize("name", ["", "cifar-10-binary.tar.gz"])
def test_official_archive_then_cache_without_a_source(tmp_path: Path, name: str) -> None:
    source = write(tmp_path / "data", {"cifar-10-binary.tar.gz": ARCHIVE}) / name
    check_pixels(load(source, tmp_path / "cache", released()))
    check_pixels(load(None, tmp_path / "cache", released()))


@pytest.mark.parametrize("name", ["", "cifar10_train.rec", "cifar10_val.rec"])
def test_records(tmp_path: Path, name: str) -> None:
    dataset = load(write(tmp_path / "data", record_files()) / name, tmp_path / "cache")
    assert dataset.name == "cifar10"
    check_pixels(dataset)


def test_jpeg_records_are_called_so_and_stay_apart_from_the_originals(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    copies, originals = (
        write(tmp_path / "copies", record_files(".jpg")),
        write(tmp_path / "bin", binary_files()),
    )
    for _ in range(2):
        jpeg = load(copies, cache)
        assert jpeg.name == "cifar10 (jpeg)"
        assert not np.array_equal(jpeg.train.images, ALL.images[:TRAIN])
        np.testing.assert_array_equal(jpeg.train.labels, ALL.labels[:TRAIN])
        check_pixels(load(originals, cache))


def test_record_in_parts_and_with_several_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    one, other = record(ALL.images[0], 0.0, labels=(3.0, 4.0)), record(ALL.images[1], 5.0)
    # A writer cuts a payload wherever it holds the magic number; the reader puts it back.
    content = part(1, b"left") + part(2, b"mid") + part(3, b"end")
    magic = struct.pack("<I", 0xCED7230A)
    assert b"".join(recordio.payload(content, one) for one in recordio.records(content, path)) == (
        b"left" + magic + b"mid" + magic + b"end"
    )
    path.write_bytes(part(0, one) + part(0, other))
    images, lossy = data._read_records(path)
    assert not lossy
    assert images.labels.tolist() == [3, 5]
    np.testing.assert_array_equal(images.images, ALL.images[:2])


def test_decoded_once_and_memory_mapped(tmp_path: Path) -> None:
    source, cache = write(tmp_path / "data", record_files()), tmp_path / "cache"
    load(source, cache)
    stamps = {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    dataset = load(source, cache)
    assert len(stamps) == 4
    assert stamps == {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}
    assert isinstance(dataset.train.images.base, np.memmap)
    check_pixels(dataset)


@pytest.mark.parametrize("changed", ["cifar10_train.rec", "cifar10_val.rec"])
def test_changed_source_is_decoded_again(tmp_path: Path, changed: str) -> None:
    files, cache = record_files(), tmp_path / "cache"
    load(write(tmp_path / "data", {**files, changed: record_files(".jpg")[changed]}), cache)
    check_pixels(load(write(tmp_path / "data", files), cache))


@pytest.mark.parametrize("damage", ["shortened", "removed"])
def test_damaged_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    source, cache = write(tmp_path / "data", record_files()), tmp_path / "cache"
    load(source, cache)
    (victim,) = cache.rglob("train_images.npy")
    if damage == "removed":
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size // 2)
    check_pixels(load(source, cache))


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({}, "holds no CIFAR-10"),
        ({"data_batch_1.bin": b""}, "data_batch_2.bin is missing"),
        ({"cifar10_train.rec": b""}, "cifar10_val.rec is missing"),
        ({**binary_files(), "data_batch_3.bin": binary_files()["data_batch_3.bin"][:-1]}, "data_batch_3.bin"),
        ({**binary_files(), "data_batch_3.bin": b""}, "data_batch_3.bin"),
        ({**binary_files(), "test_batch.bin": b"\x0a" + bytes(3072)}, "label 10"),
        ({**binary_files(), "test_batch.bin": bytes(3073)}, "holds 1 validation images"),
        (
            {**record_files(), "cifar10_val.rec": record_files()["cifar10_val.rec"][:-30]},
            "truncated in the record",
        ),
        ({**record_files(), "cifar10_val.rec": part(1, b"begun")}, "truncated in its last record"),
        ({**record_files(), "cifar10_val.rec": b"junk" * 10}, "not RecordIO at byte 0"),
        ({**record_files(), "cifar10_val.rec": b""}, "holds 0 validation images"),
        ({**record_files(), "cifar10_train.rec": part(0, bytes(24) + b"junk")}, "nothing that decodes"),
        ({**record_files(), "cifar10_train.rec": part(0, b"short")}, "no image header"),
        ({**record_files(), "cifar10_train.rec": part(0, record(ALL.images[0, :9], 0))}, "32 x 9 pixels"),
        ({"cifar-10-binary.tar.gz": ARCHIVE[:-10]}, "cifar-10-binary.tar.gz has sha256"),
        ({"cifar-10-binary.tar.gz": ARCHIVE[:-1] + b"!"}, "cifar-10-binary.tar.gz has sha256"),
        ({"cifar-10-binary.tar.gz": gzip.compress(bytes(2**28), 1)}, "cifar-10-binary.tar.gz has sha256"),
        ({**record_files(), "cifar10_val.rec": part(0, bytes(24) + image_bomb(20_000))}, "nothing that decodes"),
    ],
)
def test_source_that_is_damaged(tmp_path: Path, files: dict[str, bytes], named: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    with pytest.raises(UserError, match=r"^data: ") as error:
        load(write(tmp_path / "data", files), cache, released())
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert left_in(cache) == []


def test_an_archive_whose_paths_climb_writes_nothing_there(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for number, (name, content) in enumerate({**binary_files(), "passwd": b"x"}.items()):
            member = tarfile.TarInfo(("../../../" if number % 2 else str(tmp_path / "abroad") + "/") + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, kind in (("test_batch.bin", tarfile.SYMTYPE), ("data_batch_1.bin", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    content = buffer.getvalue()
    source = write(tmp_path / "data", {"cifar-10-binary.tar.gz": content})
    before = sorted(tmp_path.rglob("*"))
    release = data.Release(NOT_SERVED, hashlib.sha256(content).hexdigest(), TRAIN, VALIDATION)
    check_pixels(load(source, tmp_path / "cache", release))
    added = set(tmp_path.rglob("*")) - set(before)
    assert added == {tmp_path / "cache", *(tmp_path / "cache").rglob("*")}


def test_source_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere does not exist; give a folder with data_batch_1\.bin"):
        load(tmp_path / "nowhere", tmp_path / "cache")


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cache: cannot write in"):
        load(write(tmp_path / "data", binary_files()), tmp_path / "file" / "cache")


def test_an_image_that_would_fill_the_memory_is_not_decoded_and_a_large_one_is() -> None:
    assert recordio.decoded(image_bomb(12_000)) is None
    large = recordio.decoded(image_bomb(8_000))
    assert large is not None
    assert large.shape == (8_000, 8_000, 3)


def test_real_files(tmp_path: Path) -> None:
    source = os.environ.get("POC_DATA")
    if not source:
        pytest.skip("POC_DATA is not set")
    dataset = data.load(CIFAR10(), source=Path(source), cache=tmp_path, warn=pytest.fail)
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

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    finally:
        server.shutdown()
        server.server_close()


def test_download_then_cache(tmp_path: Path) -> None:
    said: list[str] = []
    with served(ARCHIVE) as url:
        dataset = data.load(PLAIN, source=None, cache=tmp_path, release=released(url), warn=said.append)
    assert dataset.name == "cifar10"
    check_pixels(dataset)
    assert len(said) == 1
    assert url in said[0]
    assert left_in(tmp_path) == [f"cifar10-{ARCHIVE_SHA256[:16]}"]
    check_pixels(load(None, tmp_path, released()))


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
    tmp_path: Path, content: bytes | None, declared: int | None, why: str
) -> None:
    said: list[str] = []
    with served(content, declared) if content else contextlib.nullcontext(NOT_SERVED) as url:
        dataset = data.load(PLAIN, source=None, cache=tmp_path, release=released(url), warn=said.append)
    assert dataset.name == "synthetic"
    assert dataset.train.images.shape == (TRAIN, 32, 32, 3)
    assert len(dataset.validation) == VALIDATION
    assert "SYNTHETIC" in said[-1]
    assert url in said[-1]
    assert why in said[-1]
    assert "\n" not in said[-1]
    assert left_in(tmp_path) == []


LOADER = """
import sys
from pathlib import Path
from poc import data
from poc.recipe import CIFAR10
release = data.Release(sys.argv[2], sys.argv[3], 15, 4)
print(data.load(CIFAR10(), source=None, cache=Path(sys.argv[1]), release=release).name)
"""


def loader(cache: Path, url: str) -> subprocess.Popen[str]:
    """A process that loads CIFAR-10."""
    command = [sys.executable, "-c", LOADER, str(cache), url, ARCHIVE_SHA256]
    root = Path(__file__).resolve().parents[1]
    return subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def bytes_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_killed_download_is_not_taken_for_good(tmp_path: Path) -> None:
    # Long enough that it cannot end before it is killed.
    with served(ARCHIVE * 1000, pause=0.002) as url:
        process = loader(tmp_path, url)
        end = time.monotonic() + 30
        # pooch tries the folder with an empty file that is gone the next moment.
        while not any(bytes_of(path) for path in tmp_path.glob("incomplete/*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert left_in(tmp_path) == ["incomplete"]
    with served(ARCHIVE) as url:
        check_pixels(data.load(PLAIN, source=None, cache=tmp_path, release=released(url), warn=lambda line: None))
    assert left_in(tmp_path) == [f"cifar10-{ARCHIVE_SHA256[:16]}"]


def test_processes_share_a_cache(tmp_path: Path) -> None:
    with served(ARCHIVE, pause=0.01) as url:
        processes = [loader(tmp_path, url) for _ in range(3)]
        outputs = [process.communicate(timeout=60) for process in processes]
    assert [out for out, _ in outputs] == ["cifar10\n"] * 3
    assert sum("Downloading" in err for _, err in outputs) == 1
    check_pixels(load(None, tmp_path, released()))


# Synthetic images


def test_synthetic_is_the_same_everywhere(tmp_path: Path) -> None:
    def make(seed: int) -> data.Dataset:
        return data.load(Synthetic(train=300, validation=100), source=None, cache=tmp_path, seed=seed)

    dataset = make(0)
    # A digest of the pixels: they may not change with the machine or the version of anything.
    assert hashlib.sha256(dataset.train.images.tobytes()).hexdigest()[:16] == "6f506aaff0a978d0"
    np.testing.assert_array_equal(dataset.validation.images, make(0).validation.images)
    assert not np.array_equal(dataset.train.images, make(1).train.images)
    assert not np.array_equal(dataset.train.images[:100], dataset.validation.images)
    assert np.bincount(dataset.train.labels).tolist() == [30] * 10
    assert left_in(tmp_path) == []


def test_synthetic_sample_does_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    few, many = (
        data.load(Synthetic(train=count, validation=1, size=20, crop=20), source=None, cache=tmp_path)
        for count in (7, 900)
    )
    np.testing.assert_array_equal(few.train.images, many.train.images[:7])


def test_synthetic_can_be_learned_by_shift_invariant_features_only(tmp_path: Path) -> None:
    dataset = data.load(Synthetic(train=3000, validation=500), source=None, cache=tmp_path)

    def accuracy(features: Any) -> float:
        train, validation = (features(split.images / 255.0) for split in (dataset.train, dataset.validation))
        means = np.stack([train[dataset.train.labels == label].mean(axis=0) for label in range(10)])
        distances = ((validation[:, None] - means[None]) ** 2).sum(axis=2)
        return float((distances.argmin(axis=1) == dataset.validation.labels).mean())

    def spectrum(images: Any) -> Any:
        low = np.abs(np.fft.fft2(images, axes=(1, 2)))[:, [-2, -1, 0, 1, 2], :3]
        shapes = low.reshape(len(images), -1, 3)[:, np.arange(15) != 6].reshape(len(images), -1)
        return shapes / np.linalg.norm(shapes, axis=1, keepdims=True)

    assert accuracy(lambda images: images.reshape(len(images), -1)) < 0.5
    assert accuracy(spectrum) > 0.95


# Order and shards


@settings(max_examples=50, deadline=None)
@given(samples=st.integers(1, 400), share=st.integers(1, 40), workers=st.integers(1, 5), epoch=st.integers(0, 3))
def test_shards_are_a_partition(samples: int, share: int, workers: int, epoch: int) -> None:
    total_batch = share * workers
    if total_batch > samples:
        with pytest.raises(UserError, match=f"total batch {total_batch} is larger than the {samples}"):
            data.steps_per_epoch(samples, total_batch)
        return
    visited = data.order(samples, seed=1, epoch=epoch)
    assert sorted(visited) == list(range(samples))
    steps = data.steps_per_epoch(samples, total_batch)
    assert samples - total_batch < steps * total_batch <= samples
    for step in range(steps):
        parts = [
            data.shard(visited, step=step, total_batch=total_batch, worker=worker, workers=workers)
            for worker in range(workers)
        ]
        assert {len(part) for part in parts} == {share}
        whole = visited[step * total_batch : (step + 1) * total_batch]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_unequal_shares_are_refused() -> None:
    with pytest.raises(ValueError, match="3 workers"):
        data.shard(np.arange(10), step=0, total_batch=10, workers=3)


def test_order_depends_on_seed_and_epoch_and_is_well_mixed() -> None:
    orders = [data.order(10_000, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)]
    for one, other in itertools.combinations(orders, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.05
        assert (one == other).mean() < 0.01
    for one in orders:
        assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.05


# Augmentation


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 64), max_size=4), epoch=st.integers(0, 5))
def test_sample_looks_the_same_in_any_batch(cuts: list[int], epoch: int) -> None:
    images = some_images(64).images
    indices = data.order(64, seed=3, epoch=epoch)
    whole = data.augment(images, indices, CIFAR10(), seed=3, epoch=epoch)
    edges = [0, *sorted(set(cuts) - {0, 64}), 64]
    parts = [data.augment(images, indices[a:b], CIFAR10(), seed=3, epoch=epoch) for a, b in zip(edges, edges[1:])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_workers_together_train_on_what_one_would() -> None:
    dataset = data.Dataset("x", some_images(70), some_images(10), 10)

    def batches(worker: int, workers: int, first_step: int = 0) -> list[data.Batch]:
        return list(
            data.training_batches(
                dataset,
                CIFAR10(),
                total_batch=24,
                seed=5,
                first_step=first_step,
                steps=7 - first_step,
                worker=worker,
                workers=workers,
            )
        )

    alone = batches(0, 1)
    assert [len(batch) for batch in alone] == [24] * 7
    assert all(batch.images.shape == (24, 3, 28, 28) and batch.images.flags.c_contiguous for batch in alone)
    for one, *shares in zip(alone, *(batches(worker, 3) for worker in range(3))):
        np.testing.assert_array_equal(one.images, np.concatenate([share.images for share in shares]))
        np.testing.assert_array_equal(one.labels, np.concatenate([share.labels for share in shares]))
        assert one.labels.dtype == np.float32
    # Two steps an epoch: a start in the middle of the third epoch goes on where the run would have been.
    for one, other in zip(alone[5:], batches(0, 1, first_step=5)):
        np.testing.assert_array_equal(one.images, other.images)


def test_batches_follow_the_order_of_each_epoch() -> None:
    dataset = data.Dataset("x", data.Images(some_images(50).images, np.arange(50, dtype=np.int32)), ALL, 50)
    batches = data.training_batches(dataset, PLAIN, total_batch=20, seed=2, steps=4)
    for step, batch in enumerate(batches):
        expected = data.order(50, seed=2, epoch=step // 2)[step % 2 * 20 :][:20]
        np.testing.assert_array_equal(batch.labels, expected)
        np.testing.assert_array_equal(batch.images, dataset.train.images[expected].transpose(0, 3, 1, 2))


def test_epochs_and_seeds_differ() -> None:
    images = some_images(32).images
    views = [
        data.augment(images, np.arange(32), CIFAR10(), seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1)
    ]
    for one, other in itertools.combinations(views, 2):
        assert (one == other).all(axis=(1, 2, 3)).mean() < 0.1


def test_crop_and_mirror_are_uniform_and_the_border_is_127() -> None:
    # Each pixel tells its own place: row in red, column in green, 255 in blue.
    image = np.full((1, 32, 32, 3), 255, np.uint8)
    image[..., 0], image[..., 1] = np.arange(32)[:, None], np.arange(32)[None]
    count = 13 * 13 * 60
    images = np.broadcast_to(image, (count, 32, 32, 3))
    views = data.augment(images, np.arange(count), CIFAR10(jitter=False), seed=0, epoch=0)

    inside = views[:, 2] == 255
    assert (views.transpose(0, 2, 3, 1)[~inside] == 127).all()
    row, column = views[:, 0, 14, 14].astype(int), views[:, 1, 14].astype(int)
    mirrored = column[:, 15] < column[:, 14]
    assert mirrored.mean() == pytest.approx(0.5, abs=0.025)  # five standard deviations
    top = row - 14 + 4
    left = np.where(mirrored, column[:, 13], column[:, 14]) - 14 + 4
    places = np.zeros((13, 13), int)
    np.add.at(places, (top, left), 1)
    assert places.sum() == count
    # Chi-squared over 169 places: mean 168, standard deviation 18.3.
    assert ((places - 60) ** 2 / 60).sum() == pytest.approx(168, abs=5 * 18.3)
    for view, y, x, flip in list(zip(views, top, left, mirrored))[:200]:
        padded = np.pad(image[0], ((4, 4), (4, 4), (0, 0)), constant_values=127)
        expected = padded[y : y + 28, x : x + 28]
        np.testing.assert_array_equal(view, (expected[:, ::-1] if flip else expected).transpose(2, 0, 1))


@pytest.mark.parametrize(
    ("pixel", "offset", "expected"),
    [
        ((40, 90, 200), (0, 0, 0), (40, 90, 200)),
        ((0, 0, 0), (0, 50, 0), (50, 50, 50)),
        ((255, 255, 255), (0, -50, 0), (205, 205, 205)),
        ((230, 230, 230), (0, 50, 0), (255, 255, 255)),
        ((30, 30, 30), (20, -50, -50), (0, 0, 0)),
        ((255, 0, 0), (30, 0, 0), (255, 255, 0)),
        # Hue 350 degrees up by 72 stops at 360, which is red, and does not go on to orange.
        ((255, 0, 43), (36, 0, 0), (255, 0, 0)),
        # Hue 12 degrees down by 72 stops at 0.
        ((255, 51, 0), (-36, 0, 0), (255, 0, 0)),
        # Half saturated, to grey at the same lightness.
        ((120, 100, 100), (0, 0, -50), (110, 110, 110)),
    ],
)
def test_known_colours(pixel: Any, offset: Any, expected: Any) -> None:
    image = np.full((1, 5, 7, 3), pixel, np.uint8)
    shifted = data._shift_hls(image, np.array([offset])).astype(int)
    assert abs(shifted - expected).max() <= 3


def test_jitter_equals_a_slow_reference() -> None:
    images = some_images(6).images
    offsets = np.array([[36, 50, 50], [-36, -50, -50], [0, 0, 0], [17, -3, 44], [-8, 31, -29], [36, -50, 50]])
    fast = data._shift_hls(images, offsets)
    for image, offset, found in zip(images, offsets, fast):
        hls = cv2.cvtColor(image, cv2.COLOR_RGB2HLS)
        for place in np.ndindex(hls.shape):
            limit = (180, 255, 255)[place[2]]
            hls[place] = max(0, min(limit, int(hls[place]) + int(offset[place[2]])))
        np.testing.assert_array_equal(found, cv2.cvtColor(hls, cv2.COLOR_HLS2RGB))


def test_offsets_are_uniform_independent_and_truncated_towards_zero() -> None:
    offsets = data._hls_offsets(np.arange(40_000), 0, 0)
    for values, reach in zip(offsets.T, (36, 50, 50)):
        counts = np.bincount(values + reach - 1)
        assert len(counts) == 2 * reach - 1
        expected = np.full(2 * reach - 1, 40_000 / (2 * reach))
        expected[reach - 1] *= 2  # everything between -1 and 1 becomes 0
        assert abs((counts - expected) / np.sqrt(expected)).max() < 5
    assert abs(np.corrcoef(offsets.T) - np.eye(3)).max() < 0.025


def test_jitter_comes_after_crop_and_mirror() -> None:
    images, indices = some_images(20).images, np.arange(20)[::-1]
    plain, jittered = (
        data.augment(images, indices, CIFAR10(jitter=jitter), seed=4, epoch=1) for jitter in (False, True)
    )
    expected = data._shift_hls(plain.transpose(0, 2, 3, 1), data._hls_offsets(indices, 4, 1))
    np.testing.assert_array_equal(jittered, expected.transpose(0, 3, 1, 2))


def test_validation_covers_each_image_once_from_its_centre() -> None:
    validation = data.Images(some_images(23).images, np.arange(23, dtype=np.int32))
    dataset = data.Dataset("x", some_images(1), validation, 23)
    for workers in (1, 2, 5):
        batches = [
            batch
            for worker in range(workers)
            for batch in data.validation_batches(dataset, CIFAR10(), batch=4, worker=worker, workers=workers)
        ]
        assert max(len(batch) for batch in batches) == 4
        np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), np.arange(23))
        pixels = np.concatenate([batch.images for batch in batches])
        np.testing.assert_array_equal(pixels, validation.images[:, 2:30, 2:30].transpose(0, 3, 1, 2))


# Prefetching


def test_prefetch_keeps_order_and_runs_no_further_ahead_than_its_depth() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    with data.Prefetch(source(), depth=3) as ahead:
        for number, item in enumerate(ahead):
            assert item == number
            # Three that wait, one that could not be put there, and the one in hand.
            assert len(made) <= number + 5
    assert number == 49


def test_prefetch_works_ahead() -> None:
    third = threading.Event()

    def source() -> Iterator[int]:
        yield 0
        yield 1
        third.set()
        yield 2

    with data.Prefetch(source(), depth=2) as ahead:
        assert third.wait(10)
        assert list(ahead) == [0, 1, 2]


def test_prefetch_hands_over_an_exception_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise UserError("data: broken")

    with data.Prefetch(source()) as ahead:
        assert next(ahead) == 1
        with pytest.raises(UserError, match="broken"):
            next(ahead)


def test_prefetch_stops_when_its_block_is_left() -> None:
    before = threading.active_count()
    with data.Prefetch(itertools.count(), depth=2) as ahead:
        assert next(ahead) == 0
    assert threading.active_count() == before


def test_prefetch_does_not_keep_the_interpreter() -> None:
    code = "import itertools; from poc.data import Prefetch; p = Prefetch(itertools.count()); p.__enter__()"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_no_framework_is_imported() -> None:
    code = "import sys, poc.data; sys.exit(any(name.split('.')[0] == 'mxnet' for name in sys.modules))"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0


def test_a_fixed_batch_is_the_same_object_every_time(tmp_path: Path) -> None:
    spec = synthetic("cifar")
    dataset = data.load(spec, source=None, cache=tmp_path)
    found = list(data.training_batches(dataset, spec, total_batch=200, seed=0, steps=3, worker=1, workers=2))
    assert found[0] is found[1] is found[2]
    assert found[0].images.shape == (100, 3, 32, 32)
    # Fewer images than the batch: they come again.
    assert np.array_equal(found[0].images[64:], found[0].images[:36])
    assert len(np.unique(found[0].images[:64].reshape(64, -1), axis=0)) == 64


@pytest.mark.parametrize(("like", "size"), [("cifar", 32), ("imagenet", 224)])
def test_synthetic_shapes(like: str, size: int) -> None:
    assert synthetic(like).input_shape == (3, size, size)
    assert synthetic(like, size=64, fixed=False).input_shape == (3, 64, 64)
    with pytest.raises(UserError, match="did you mean 'imagenet'"):
        synthetic("imagnet")
