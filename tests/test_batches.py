"""Synthetic images, augmentation, each worker's batches and prefetching."""

import hashlib
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poc import data
from poc.config import CIFAR10, Folder, Synthetic, synthetic
from poc.data.batches import order
from poc.data.photos import Photos
from poc.host import hardware
from poc.values import UserError
from tests.launch import python

NOISE = np.random.default_rng(0).integers(0, 256, (70, 32, 32, 3), np.uint8)
DATASET = data.Dataset("noise", *(data.Images(NOISE[:count], np.arange(count, dtype=np.int32)) for count in (70, 23)))


def load(spec: Synthetic) -> Any:
    return data.load(spec, source=None, cache=Path("unused"))


# Synthetic images


def test_synthetic_is_the_same_everywhere() -> None:
    dataset = load(Synthetic(train=300, validation=100))
    (batch,) = data.training_batches(dataset, CIFAR10(jitter=False), global_batch=100, seed=1, first_step=4, steps=1)
    # Digests of the pixels: they may not change with the machine or the version of anything.
    assert hashlib.sha256(dataset.train.images.tobytes()).hexdigest()[:16] == "6f506aaff0a978d0"
    assert hashlib.sha256(batch.images.tobytes()).hexdigest()[:16] == "4df8140202044397"
    assert not np.array_equal(dataset.train.images[:100], dataset.validation.images)
    assert np.bincount(dataset.train.labels).tolist() == [30] * 10
    few, many = (load(Synthetic(train=count, validation=1, size=20, crop=20)) for count in (7, 900))
    np.testing.assert_array_equal(few.train.images, many.train.images[:7])


def test_a_fixed_batch_is_the_same_object_every_time() -> None:
    spec = synthetic("cifar")
    first, *others = data.training_batches(load(spec), spec, global_batch=200, seed=0, steps=3, worker=1, workers=2)
    assert [batch is first for batch in others] == [True, True]
    assert first.images.shape == (100, 3, 32, 32)
    # Fewer images than the batch: they come again.
    np.testing.assert_array_equal(first.images[64:], first.images[:36])
    assert len(np.unique(first.images[:64].reshape(64, -1), axis=0)) == 64


# Augmentation


@pytest.mark.parametrize(
    ("spec", "digest"),
    [
        (CIFAR10(), "7b14589923f398dc"),
        (CIFAR10(jitter=False), "935717641ab73559"),
        (CIFAR10(pad=0, jitter=False), "51c67c56d02f8317"),
        (CIFAR10(crop=5, pad=1), "e73eb7b3359f4250"),
        (CIFAR10(crop=32, pad=0, mirror=False, jitter=False), "d0981e48d8c404ee"),
        (CIFAR10(jitter=False, cutout=4), "da61aeefb0323ed5"),
        (CIFAR10(jitter=False, alternate=True), "16e247870083b02d"),
        (CIFAR10(jitter=False, alternate=True, on_device=True), "18a15ca477dc44f1"),  # the crops alone
    ],
)
def test_every_image_is_what_it_was_when_the_published_runs_were_made(spec: CIFAR10, digest: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (1000, 32, 32, 3), np.uint8)
    split = data.Images(noise, np.arange(1000, dtype=np.int32))
    pixels = hashlib.sha256()
    # One image, a part of what is made at a time, several such parts and a rest.
    for seed, epoch, count in [(0, 0, 1), (0, 5, 40), (1, 0, 128), (7, 2, 999)]:
        shown, labels = split.augment(np.arange(count)[::-1], spec, seed=seed, epoch=epoch)
        np.testing.assert_array_equal(labels, np.arange(count)[::-1])
        pixels.update(np.asarray(shown).tobytes())
    assert pixels.hexdigest()[:16] == digest


# Batches


@settings(max_examples=50)
@given(samples=st.integers(1, 400), share=st.integers(1, 40), workers=st.integers(1, 5), epoch=st.integers(0, 3))
def test_workers_share_the_whole_batches_of_an_epoch(samples: int, share: int, workers: int, epoch: int) -> None:
    spec, global_batch = Synthetic(size=1, crop=1), share * workers
    # The pixel of an image says which it is.
    pixels = np.stack([np.arange(samples) % 256, np.arange(samples) // 256, np.zeros(samples)], axis=1)
    split = data.Images(pixels.astype(np.uint8).reshape(-1, 1, 1, 3), np.arange(samples, dtype=np.int32))
    steps = samples // global_batch

    def batches(worker: int) -> Iterator[data.Batch]:
        return data.training_batches(
            data.Dataset("x", split, split), spec, global_batch=global_batch, seed=1,
            first_step=epoch * steps, steps=max(steps, 1), worker=worker, workers=workers,
        )  # fmt: skip

    if not steps:
        with pytest.raises(UserError, match=f"global batch {global_batch} is larger than the {samples}"):
            next(batches(0))
        return
    visited = order(samples, seed=1, epoch=epoch)
    assert sorted(visited) == list(range(samples))
    shares: list[Any] = list(itertools.chain(*zip(*map(batches, range(workers)))))
    assert {len(batch) for batch in shares} == {share}
    trained = visited[: steps * global_batch]
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in shares]), trained)
    np.testing.assert_array_equal(np.concatenate([batch.images for batch in shares])[..., 0, 0], pixels[trained])


def test_the_micro_batches_of_all_workers_together_are_those_of_one() -> None:
    def micro_batches(**share: int) -> list[list[Any]]:
        options: dict[str, Any] = {"global_batch": 24, "accumulate": 3, "seed": 5, "steps": 40, **share}
        batches = [batch.labels for batch in data.training_batches(DATASET, CIFAR10(), **options)]
        return [np.split(labels, 3) for labels in batches]

    whole, *shares = micro_batches(), *(micro_batches(worker=worker, workers=4) for worker in range(4))
    np.testing.assert_array_equal(whole, np.concatenate(shares, axis=2))


@pytest.mark.parametrize("cores", [1, 2])
def test_as_many_batches_are_made_at_once_as_there_are_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    together, makers, made = threading.Barrier(cores), set(), []

    class Slow(data.Images):
        def augment(self, indices: Any, *args: Any, **kwargs: Any) -> Any:
            together.wait(60)
            makers.add(threading.get_ident())
            made.append(indices)
            return super().augment(indices, *args, **kwargs)

    monkeypatch.setattr(hardware, "usable_cores", lambda: cores)
    monkeypatch.setattr("poc.data.batches._BYTES_PER_JOB", 0)  # else small batches are made together
    before = threading.active_count()
    shown: list[Any] = []
    slow = data.Dataset("slow", Slow(DATASET.train.images, DATASET.train.labels), DATASET.validation)
    for batch in data.training_batches(slow, CIFAR10(), global_batch=5, seed=5, steps=14):
        assert len(made) <= len(shown) + 1 + cores
        shown.append(batch)
    assert len(makers) == cores
    assert threading.active_count() == before
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in shown]), order(70, seed=5, epoch=0))


def test_the_next_photos_are_decoded_while_the_last_one_of_a_batch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, fifth_is_read = itertools.count(1), threading.Event()

    class Files:
        labels = np.zeros(12, np.int32)

        def read(self, index: int) -> Any:
            number = next(reads)
            if number == 5:
                fifth_is_read.set()
            assert number != 1 or fifth_is_read.wait(60)
            return NOISE[index]

    monkeypatch.setattr(hardware, "usable_cores", lambda: 2)
    photos: Any = Photos(Files())  # type: ignore[arg-type]
    dataset = data.Dataset("photos", photos, photos)
    batches = data.training_batches(dataset, Folder("unused", crop=8), global_batch=4, seed=5, steps=3)
    np.testing.assert_array_equal([len(batch) for batch in batches], [4, 4, 4])


def test_validation_covers_each_image_once_from_its_centre() -> None:
    batches: list[Any] = [
        batch
        for worker in range(5)
        for batch in data.validation_batches(DATASET, CIFAR10(), batch=4, worker=worker, workers=5)
    ]
    assert max(len(batch) for batch in batches) == 4
    np.testing.assert_array_equal(np.concatenate([batch.labels for batch in batches]), np.arange(23))
    pixels = np.concatenate([batch.images for batch in batches])
    np.testing.assert_array_equal(pixels, NOISE[:23, 2:30, 2:30].transpose(0, 3, 1, 2))


# Prefetching


def test_prefetch_works_ahead_in_order_as_far_as_its_depth() -> None:
    made: list[int] = []
    begin, third = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        begin.wait(600)
        for number in range(50):
            made.append(number)
            if number == 2:
                third.set()
            yield number

    with data.prefetch(source(), depth=3) as (ahead, is_ready):
        assert not is_ready(0.0)
        begin.set()
        assert is_ready(600)
        assert third.wait(600)
        for number, item in enumerate(ahead):
            assert item == number
            assert len(made) <= number + 1 + 3
        assert number == 49
        assert next(ahead, None) is None


def test_prefetch_hands_over_an_exception_in_its_place() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise UserError("data: broken")

    with data.prefetch(source()) as (ahead, _):
        assert next(ahead) == 1
        with pytest.raises(UserError, match="broken"):
            next(ahead)
        assert list(ahead) == []


def test_prefetch_stops_when_its_block_is_left_and_does_not_keep_the_interpreter() -> None:
    before = threading.active_count()
    with data.prefetch(itertools.count(), depth=2) as (ahead, _):
        assert next(ahead) == 0
    assert threading.active_count() == before
    code = "import itertools; from poc.data import prefetch; p = prefetch(itertools.count()); p.__enter__()"
    assert python(code).returncode == 0
