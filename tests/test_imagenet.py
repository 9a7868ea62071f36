"""ImageNet from RecordIO files, small ones made for the test: what comes out, and what is said of damaged ones."""

import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from poc import ImageNet, data
from poc.data import recordio
from poc.data.randomness import CROP_X, CROP_Y, MIRROR, uniform
from poc.values import UserError
from tests.test_data import part, record

SIZES = [(300, 400), (256, 256), (500, 333), (100, 120), (257, 600)]
SPEC = ImageNet(crop=224, resize=256, train=10, validation=5)


def picture(number: int, height: int, width: int) -> Any:
    """A smooth picture that says which one it is by its mean colour."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 20 * number + rows * 30 // height
    return np.stack([red, columns * 200 // width, rows * 200 // height], axis=-1).astype(np.uint8)


def write(folder: Path, images: ImageNet, shift: int = 0) -> Path:
    """Writes the two files, with as many pictures as `images` says, labels moved by `shift`, and returns the folder."""
    for name, count in (("train", images.train), ("val", images.validation)):
        labels = [float((100 * i + shift) % 1000) for i in range(count)]
        records = [part(0, record(picture(i % 10, *SIZES[i % 5]), labels[i], ".jpg")) for i in range(count)]
        (folder / f"imagenet_{name}.rec").write_bytes(b"".join(records))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, SPEC)


def load(folder: Path) -> data.Dataset:
    return data.load(SPEC, source=folder, cache=Path("unused"))


def test_crop_and_mirror_are_those_drawn_for_the_epoch(folder: Path) -> None:
    train, mirrored = load(folder).train, 0
    for epoch in range(8):
        top, left, mirror = (uniform(1, epoch, 1, draw)[0] for draw in (CROP_Y, CROP_X, MIRROR))
        y, x = int(top * 33), int(left * 33)
        expected = picture(1, 256, 256)[y : y + 224, x : x + 224][:, :: -1 if mirror < 0.5 else 1].transpose(2, 0, 1)
        shown: Any = train.augment(np.array([3, 1]), SPEC, seed=1, epoch=epoch)[0]
        assert np.abs(shown[1].astype(int) - expected).mean() < 2  # JPEG loses some
        mirrored += mirror < 0.5
    assert 0 < mirrored < 8


def test_validation_images_are_centre_crops_and_those_smaller_than_the_crop_are_enlarged(folder: Path) -> None:
    batches: list[Any] = list(data.validation_batches(load(folder), SPEC, batch=3))
    assert [len(batch) for batch in batches] == [3, 2]
    expected = picture(1, 256, 256)[16:240, 16:240].transpose(2, 0, 1).astype(int)
    assert np.abs(batches[0].images[1].astype(int) - expected).mean() < 3  # JPEG loses some
    enlarged = batches[1].images[0]  # of 100 x 120 pixels
    assert (enlarged.shape, batches[1].labels[0]) == ((3, 224, 224), 300.0)
    assert cv2.Laplacian(enlarged[1], cv2.CV_64F).var() < 50  # smooth, as it was


@pytest.mark.parametrize(
    ("change", "message", "opens"),
    [
        (lambda content: b"", "imagenet_train.rec cannot be read", False),
        (lambda content: content + part(0, bytes(24)), r"_train.rec has 11 images, .* 10", False),
        (lambda content: content[:32] + bytes(200) + content[232:], "_train.rec, record 0 .*decoded", True),
    ],
    ids=["empty", "one too many", "spoilt image"],
)
def test_damage_is_one_line_before_anything_is_spent_or_names_the_image(
    change: Any, message: str, opens: bool, folder: Path
) -> None:
    path = folder / "imagenet_train.rec"
    path.write_bytes(change(path.read_bytes()))
    opened = load(folder) if opens else None
    with pytest.raises(UserError, match=f"^data: [^\n]*{message}[^\n]*$"):
        (opened or load(folder)).train.center_crop(np.array([0]), SPEC)


@pytest.mark.parametrize("name", ["train", "val"])
@pytest.mark.parametrize("change", ["label", "end"])
def test_files_that_differ_are_another_data_set_and_how_they_are_shown_does_not_matter(
    name: str, change: str, folder: Path, tmp_path: Path
) -> None:
    first = load(folder).data_id
    shown_otherwise = ImageNet(crop=32, resize=40, train=10, validation=5)
    assert data.load(shown_otherwise, source=folder, cache=Path("unused")).data_id == first
    path = folder / f"imagenet_{name}.rec"
    content = path.read_bytes()
    last = [*recordio.records(content, path)][-1].stop - 1
    changed = {
        "label": content[:12] + struct.pack("<f", 1.0) + content[16:],
        "end": content[:last] + bytes([content[last] ^ 1]) + content[last + 1 :],
    }
    path.write_bytes(changed[change])
    other = load(folder).data_id
    assert (other.name, len(other.checksum)) == (first.name, len(first.checksum))
    assert other != first


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
