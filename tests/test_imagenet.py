"""ImageNet from RecordIO files, small ones made for the test: what comes out, and what is said of damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from poc import ImageNet, data
from poc.values import UserError
from tests.test_data import part, record

SIZES = [(300, 400), (256, 256), (500, 333), (100, 120), (257, 600)]
SPEC = ImageNet(crop=224, resize=256, train=10, validation=5)


def picture(number: int, height: int, width: int) -> Any:
    """A smooth picture that says which one it is by its mean colour."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 20 * number + rows * 30 // height
    return np.stack([red, columns * 200 // width, rows * 200 // height], axis=-1).astype(np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("train", 10), ("val", 5)):
        whole = [part(0, record(picture(i, *SIZES[i % 5]), float(100 * i), ".jpg")) for i in range(count)]
        (tmp_path / f"imagenet_{name}.rec").write_bytes(b"".join(whole))
    return tmp_path


def load(folder: Path | None, spec: ImageNet = SPEC) -> data.Dataset:
    return data.load(spec, source=folder, cache=Path("unused"))


def test_training_images_are_crops_of_the_resized_ones_with_their_labels(folder: Path) -> None:
    dataset = load(folder)
    assert (dataset.name, dataset.classes, len(dataset.train), len(dataset.validation)) == ("imagenet", 1000, 10, 5)
    (batch,) = data.training_batches(dataset, SPEC, total_batch=10, seed=0, steps=1)
    assert batch.images.shape == (10, 3, 224, 224)
    assert batch.images.dtype == np.uint8
    numbers = (batch.labels / 100).astype(int)
    assert sorted(numbers) == list(range(10))
    # Red first, and of the picture that the label names.
    reds = batch.images[:, 0].mean(axis=(1, 2))
    assert np.all(np.abs(reds - (20 * numbers + 15)) < 8)
    assert np.all(batch.images[:, 1].std(axis=(1, 2)) > 20)


def test_the_same_sample_looks_the_same_on_every_machine_and_differs_between_epochs(folder: Path) -> None:
    def first(epoch: int) -> Any:
        return load(folder).train.augmented(np.array([3, 4]), SPEC, seed=1, epoch=epoch)[0]

    assert np.array_equal(first(0), first(0))
    assert not np.array_equal(first(0), first(1))


def test_workers_share_a_batch(folder: Path) -> None:
    dataset = load(folder)
    (whole,) = data.training_batches(dataset, SPEC, total_batch=10, seed=0, steps=1)
    halves = [
        next(iter(data.training_batches(dataset, SPEC, total_batch=10, seed=0, steps=1, worker=worker, workers=2)))
        for worker in range(2)
    ]
    assert np.array_equal(np.concatenate([half.images for half in halves]), whole.images)


def test_validation_images_are_centre_crops(folder: Path) -> None:
    batches = list(data.validation_batches(load(folder), SPEC, batch=3))
    assert [len(batch) for batch in batches] == [3, 2]
    expected = picture(1, 256, 256)[16:240, 16:240].transpose(2, 0, 1).astype(int)
    assert np.abs(batches[0].images[1].astype(int) - expected).mean() < 3  # JPEG loses some


def test_images_smaller_than_the_crop_are_enlarged(folder: Path) -> None:
    pixels, labels = load(folder).train.centred(np.array([3]), SPEC)
    assert pixels.shape == (1, 3, 224, 224)
    assert labels.tolist() == [300.0]
    assert cv2.Laplacian(pixels[0, 1], cv2.CV_64F).var() < 50  # smooth, as it was


def spoil(folder: Path, change: Any) -> None:
    path = folder / "imagenet_train.rec"
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-500], "truncated in the record at byte"),
        (lambda content: b"", "cannot be read"),
        (lambda content: b"\x00" + content[1:], "is not RecordIO at byte 0"),
        (lambda content: content + part(0, b"more"), r"holds 11 images, ImageNet\(...\) says 10"),
    ],
    ids=["cut short", "empty", "flipped byte", "one too many"],
)
def test_a_damaged_file_is_one_line_before_anything_is_spent(change: Any, message: str, folder: Path) -> None:
    spoil(folder, change)
    with pytest.raises(UserError, match=message) as caught:
        load(folder)
    assert "imagenet_train.rec" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_image_that_does_not_decode_is_named(folder: Path) -> None:
    start = 8 + 24
    spoil(folder, lambda content: content[:start] + b"\x00" * 200 + content[start + 200 :])
    with pytest.raises(UserError, match=r"imagenet_train.rec, record 0: nothing that decodes"):
        load(folder).train.centred(np.array([0]), SPEC)


def test_a_label_out_of_range_is_named(tmp_path: Path) -> None:
    for name in ("train", "val"):
        (tmp_path / f"imagenet_{name}.rec").write_bytes(part(0, record(picture(0, 256, 256), 1000.0)))
    spec = ImageNet(train=1, validation=1)
    with pytest.raises(UserError, match=r"record 0 has the label 1000, ImageNet has 0 to 999"):
        load(tmp_path, spec).validation.centred(np.array([0]), spec)


def test_without_files_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ImageNet cannot be downloaded; give --data"):
        load(None)
    with pytest.raises(UserError, match=r"imagenet_train.rec is missing; give a folder with"):
        load(tmp_path)
