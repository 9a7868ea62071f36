"""The user's own images: what is found in their files, what batches show, mistakes, and trainings on them."""

import dataclasses
import errno
import os
import shutil
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import cv2
import numpy as np
import pytest

from poc import CIFAR100, Arrays, Folder, Recipe, Records, config, data
from poc.config.datasets import with_validation_split
from poc.config.run import Run
from poc.data import photos
from poc.data.cifar import RELEASES
from poc.data.randomness import MIRROR, uniform
from poc.host import hardware
from poc.plan import plan
from poc.report.results import Results, Subject
from poc.run.sweep import Sweep
from poc.run.workload import totals
from poc.values import UserError, from_plain, to_plain
from tests.builders import MACHINE, build, place_in, record_of, run_of
from tests.test_data import PIXELS, part, python_2_batch, record, tar_of, text, write

CLASSES = ("cat", "dog", "eel")
TRAIN, VALIDATION = 16, 4  # of each class
SIZES = [(20, 26), (16, 16), (40, 18), (17, 33)]
FOLDER = Folder("photos", crop=16, resize=20)
RECORDS = Records(train="train.rec", val="val.rec", classes=3, crop=16, resize=20)
ARRAYS = Arrays("mine.npz", crop=16, pad=2, mirror=True)


def picture(label: int, number: int) -> Any:
    """A noisy picture in the colour of its class."""
    pixels = np.random.default_rng([label, number]).integers(0, 60, (*SIZES[number % 4], 3))
    pixels[..., label] += 150
    return pixels.astype(np.uint8)


def folder_in(path: Path) -> Folder:
    """A folder with JPEG and PNG files, one of them in a folder of its class."""
    for label, name in enumerate(CLASSES):
        for number in range(TRAIN + VALIDATION):
            split, suffix = "train" if number < TRAIN else "val", ".JPG" if number % 2 else ".png"
            file = path / "photos" / split / name / ("more" if number == 3 else "") / f"{number}{suffix}"
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), picture(label, number)[..., ::-1])
    (path / "photos" / "train" / "cat" / ".hidden").touch()
    return FOLDER


def records_in(path: Path, labels_shift: int = 0) -> Records:
    """Two RecordIO files of the same pictures, with the next labels if `labels_shift` is 1."""
    numbers = {"train": range(TRAIN), "val": range(TRAIN, TRAIN + VALIDATION)}
    for name, chosen in numbers.items():
        content = [part(0, record(picture(label, n), (label + labels_shift) % 3)) for n in chosen for label in range(3)]
        (path / f"{name}.rec").write_bytes(b"".join(content))
    return RECORDS


def arrays_in(path: Path, **changes: Any) -> Arrays:
    """A file of arrays as Keras writes it."""
    labels, numbers = np.arange(60) % 3, np.arange(60)
    images = np.stack([cv2.resize(picture(label, n), (18, 18)) for label, n in zip(labels, numbers)])
    arrays = {"x_train": images[:48], "y_train": labels[:48, None], "x_test": images[48:], "y_test": labels[48:, None]}
    np.savez_compressed(path / "mine.npz", **{**arrays, **changes})
    return ARRAYS


KINDS = (folder_in, records_in, arrays_in)
SPECS: dict[Any, Any] = {folder_in: FOLDER, records_in: RECORDS, arrays_in: ARRAYS}


def load(spec: Any, path: Path, cache: Path | None = None) -> Any:
    return data.load(data.count(spec, path), source=None, cache=cache or path / "cache")


@pytest.mark.parametrize("kind", KINDS)
def test_classes_and_images_are_counted_and_paths_are_no_part_of_the_id(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    spec = data.count(kind(tmp_path), tmp_path)
    assert (spec.classes, spec.train_images, spec.validation, spec.crop) == (3, 48, 12, 16)
    run = run_of(model="cifar_resnet8_v2", framework="mxnet", data=spec, batch_per_device=12)
    moved = tmp_path / "moved"
    shutil.copytree(tmp_path, moved)
    other = dataclasses.replace(run, data=data.count(kind(moved), moved))
    assert (other.id, other.steps_per_epoch) == (run.id, 4)
    assert other.data != run.data
    ids = [data.load(each.data, source=None, cache=tmp_path / "cache").data_id for each in (run, other)]
    assert ids[0] == ids[1]
    assert ids[0].name == f"{spec.name}-{ids[0].checksum[:6]}"
    shutil.rmtree(moved)
    assert from_plain(Run, to_plain(other)) == other  # without the files


@pytest.mark.parametrize("kind", KINDS)
def test_the_validation_split_is_the_last_tenth_of_each_class_and_not_trained_on(
    kind: Callable[[Path], Any], tmp_path: Path
) -> None:
    whole = data.count(kind(tmp_path), tmp_path)
    spec = with_validation_split(whole)
    assert spec == data.count(dataclasses.replace(kind(tmp_path), validate_on="held-out"), tmp_path)
    assert (whole.train_images, spec.train_images) == (48, 44)
    dataset, everything = (data.load(each, source=None, cache=tmp_path / "cache") for each in (spec, whole))
    assert dataset.data_id == everything.data_id
    assert (len(dataset.train), len(dataset.validation)) == (44, 4)

    def shown(split: Any, of: Any) -> list[bytes]:
        return [of.center_crop(np.array([index]), spec)[0].tobytes() for index in split]

    trained, held_out = (shown(range(len(split)), split) for split in (dataset.train, dataset.validation))
    assert sorted(trained + held_out) == sorted(shown(range(48), everything.train))
    # One of each class, and the fourth of the first class.
    of_class = [np.flatnonzero(everything.train.labels == label) for label in range(3)]
    expected = [of_class[0][-1], of_class[1][-1], of_class[2][-1], of_class[0][-2]]
    assert sorted(held_out) == sorted(shown(expected, everything.train))
    pixels, labels = dataset.validation.center_crop(np.arange(4), spec)
    assert (pixels.mean(axis=(2, 3)).argmax(axis=1) == labels).all()


@pytest.mark.parametrize("kind", KINDS)
def test_workers_together_train_and_validate_on_what_one_would(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    spec = data.count(kind(tmp_path), tmp_path)
    dataset = load(spec, tmp_path)

    def batches(first_step: int = 0, **share: int) -> list[Any]:
        options: Any = {"global_batch": 12, "seed": 5, "first_step": first_step, "steps": 9 - first_step, **share}
        return list(data.training_batches(dataset, spec, **options))

    alone = batches()
    for whole, *shares in zip(alone, *(batches(worker=worker, workers=2) for worker in range(2))):
        assert (whole.images.shape, whole.images.dtype, whole.labels.dtype) == ((12, 3, 16, 16), np.uint8, np.float32)
        assert whole.images.flags.c_contiguous
        np.testing.assert_array_equal(whole.images, np.concatenate([share.images for share in shares]))
        np.testing.assert_array_equal(whole.labels, np.concatenate([share.labels for share in shares]))
        # Red first, and of the class that the label says.
        assert (whole.images.mean(axis=(2, 3)).argmax(axis=1) == whole.labels).all()
    for expected, resumed in zip(alone[5:], batches(first_step=5)):
        np.testing.assert_array_equal(expected.images, resumed.images)
    assert not np.array_equal(alone[0].images, alone[4].images)
    assert sorted(np.concatenate([batch.labels for batch in alone[:4]])) == [0] * 16 + [1] * 16 + [2] * 16
    parts = [data.validation_batches(dataset, spec, batch=5, worker=n, workers=2) for n in range(2)]
    (all_at_once,) = data.validation_batches(dataset, spec, batch=12)
    shown = [batch.images for share in parts for batch in share]
    np.testing.assert_array_equal(np.concatenate(shown), all_at_once.images)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS[:2])
@pytest.mark.parametrize(("cores", "decoded"), [(1, 4), (2, 4), (9, 8)])
def test_photos_are_decoded_together_only_as_far_as_cores_would_be_idle(
    kind: Callable[[Path], Any], cores: int, decoded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: cores)
    spec = data.count(kind(tmp_path), tmp_path)
    dataset = load(spec, tmp_path)
    assert dataset.train._pool._max_workers == cores
    with mock.patch.object(photos.Photos, "augment", autospec=True, side_effect=photos.Photos.augment) as augment:
        next(data.training_batches(dataset, spec, global_batch=4, seed=5, steps=12))
    assert len(augment.call_args_list[0].args[1]) == decoded


def test_a_folder_has_the_images_of_its_files_by_sorted_names(tmp_path: Path) -> None:
    train = load(folder_in(tmp_path), tmp_path).train
    assert train.files.names[:4] == ["cat/0.png", "cat/1.JPG", "cat/10.png", "cat/11.JPG"]
    assert "cat/more/3.JPG" in train.files.names
    index = train.files.names.index("dog/14.png")
    assert train.labels[index] == 1
    np.testing.assert_array_equal(train.files.read(index)[..., ::-1], picture(1, 14))


def test_validation_shows_the_centre_of_a_photo_and_enlarges_a_small_one(tmp_path: Path) -> None:
    spec = data.count(records_in(tmp_path), tmp_path)
    first, second = data.validation_batches(load(spec, tmp_path), spec, batch=8)
    assert (len(first), len(second)) == (8, 4)
    expected = picture(0, 16)[2:18, 5:21], cv2.resize(picture(0, 17), (20, 20))[2:18, 2:18]
    np.testing.assert_array_equal(first.images[[0, 3]], np.transpose(expected, (0, 3, 1, 2)))


def test_whether_a_photo_is_flipped_is_drawn_for_each_epoch(tmp_path: Path) -> None:
    train, whole = load(records_in(tmp_path), tmp_path).train, dataclasses.replace(RECORDS, scale=1.0)
    flips = [bool(uniform(1, epoch, 3, MIRROR) < 0.5) for epoch in range(8)]
    assert 0 < sum(flips) < 8
    for epoch, is_flipped in enumerate(flips):
        shown = train.augment(np.array([7, 3]), whole, seed=1, epoch=epoch)[0][1]
        expected = picture(0, 1)[:, :: -1 if is_flipped else 1]
        np.testing.assert_array_equal(shown, expected.transpose(2, 0, 1))


def test_grey_arrays_have_three_equal_colours_and_the_crop_is_the_whole_image(tmp_path: Path) -> None:
    grey = PIXELS[:12, :, :, 0]
    np.savez(tmp_path / "a.npz", x_train=grey, y_train=np.arange(12) % 4, x_test=grey[:5], y_test=np.arange(5) % 4)
    spec = data.count(Arrays("a.npz"), tmp_path)
    (batch,) = data.validation_batches(load(spec, tmp_path), spec, batch=5)
    assert (spec.classes, spec.crop) == (4, 32)
    np.testing.assert_array_equal(batch.images, np.repeat(grey[:5, None], 3, axis=1))  # type: ignore[arg-type]


def test_two_folders_of_the_same_size_are_two_runs(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        folder_in(tmp_path / name)
    _pixel(tmp_path / "second/photos/train/dog/2.png")
    both = [data.count(Folder(f"{name}/photos", crop=16, resize=20), tmp_path) for name in ("first", "second")]
    recipe = Recipe("cifar_resnet8_v2", framework="mxnet", kind="cpu", data=both, batch_per_device=12, lr=0.01)
    planned = plan("test", recipe, MACHINE)
    assert len(planned) == 2
    assert len({item.run.id for item in planned}) == 1
    images = data.identify(both, source=None, cache=tmp_path / "cache")
    assert len(set(images.values())) == 2
    sweep = Sweep(planned, tmp_path / "results", place_in(tmp_path, images=images))
    assert len(sweep.pending(sweep.plan)) == 2
    assert totals(sweep.lines())["runs"] == 2


def test_each_file_is_a_sign_of_life(tmp_path: Path) -> None:
    spec, cache, signs = data.count(folder_in(tmp_path), tmp_path), tmp_path / "cache", list[int]()
    for expected in (120, 180):  # looked at and read, then looked at alone, as the checksum is known
        data.load(spec, source=None, cache=cache, alive=lambda: signs.append(1))
        assert len(signs) == expected


# Random resized crop


def boxes(height: int, width: int, scale: float, count: int = 2000) -> Any:
    """Random crops of an image: top, left, height and width of each."""
    spec = Folder("unused", crop=8, scale=scale)
    seen = []

    class Spy:
        labels = np.zeros(count, np.int32)

        def __len__(self) -> int:
            return count

        def read(self, index: int) -> Any:
            rows, columns = np.mgrid[0:height, 0:width]
            return np.stack([rows, columns, rows], axis=-1).astype(np.uint8)

    original = photos._scaled

    def spy(image: Any, size: tuple[int, int]) -> Any:
        seen.append((image[0, 0, 0], image[0, 0, 1], *image.shape[:2]))
        return original(image, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(photos, "_scaled", spy)
        photos.Photos(Spy()).augment(np.arange(count), spec, seed=1, epoch=2)
    return np.array(seen, float).T


def test_random_resized_crops_have_the_area_the_ratio_and_the_places_of_the_paper() -> None:
    top, left, rows, columns = boxes(200, 240, 0.08)
    area, ratio = rows * columns / (200 * 240), columns / rows
    assert 0.075 < area.min() < 0.1
    assert 0.9 < area.max() <= 1
    # Uniform, but for large ones that do not fit in their shape and are drawn again.
    assert area.mean() == pytest.approx(0.5, abs=0.04)
    assert (ratio > 0.74).all()
    assert (ratio < 1.35).all()
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.03)
    for place, room in ((top, 200 - rows), (left, 240 - columns)):
        share = place[room > 20] / room[room > 20]
        assert share.mean() == pytest.approx(0.5, abs=0.03)
        assert (share <= 1).all()
        assert share.std() == pytest.approx(12**-0.5, abs=0.02)


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [
        (60, 70, (0, 0, 60, 70)),  # the whole image
        (60, 200, (0, 60, 60, 80)),  # the largest allowed ratio, in the centre
        (200, 60, (60, 0, 80, 60)),
    ],
)
def test_at_scale_1_the_whole_image_is_shown_as_far_as_its_ratio_is_allowed(
    height: int, width: int, expected: tuple[int, ...]
) -> None:
    seen = boxes(height, width, 1.0, 50)
    assert np.abs(seen.T - expected).max() <= 1  # a ratio next to the image's is rounded
    assert expected in {*zip(*seen)}


def test_of_a_strip_the_centre_is_cropped_without_scaling_all_of_it() -> None:
    strip = np.zeros((30_000, 1, 3), np.uint8)
    strip[14_500:15_500] = 200
    with mock.patch.object(photos, "_scaled", wraps=photos._scaled) as scaled:
        crop = photos.scaled_crop(strip, Folder("unused", crop=176, resize=200))
    assert (crop.shape, np.unique(crop).tolist()) == ((176, 176, 3), [200])
    assert max(scaled.call_args.args[1]) <= 64 * 200


# Identity


def _renamed(path: Path) -> None:
    for split in ("train", "val"):
        (path / "photos" / split / "eel").rename(path / "photos" / split / "fox")


def _pixel(file: Path) -> None:
    image = cv2.imread(str(file))
    image[0, 0, 0] ^= 1
    cv2.imwrite(str(file), image)


def _end(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-8] + bytes(8))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (folder_in, lambda path: _pixel(path / "photos/train/dog/2.png")),
        (folder_in, lambda path: _pixel(path / "photos/val/dog/16.png")),
        (folder_in, _renamed),
        (records_in, lambda path: _end(path / "train.rec")),
        (records_in, lambda path: _end(path / "val.rec")),
        (arrays_in, lambda path: arrays_in(path, y_test=np.zeros(12, int))),
    ],
    ids=["pixel", "validation pixel", "class", "record", "validation record", "label"],
)
def test_any_change_makes_another_data_set_and_the_checksum_is_kept_in_the_cache(
    kind: Callable[[Path], Any], change: Callable[[Path], Any], tmp_path: Path
) -> None:
    before = load(kind(tmp_path), tmp_path).data_id
    assert load(kind(tmp_path), tmp_path).data_id == before
    change(tmp_path)
    after = load(SPECS[kind], tmp_path).data_id
    assert after != before
    assert load(SPECS[kind], tmp_path, tmp_path / "other").data_id == after


# Mistakes


def _class_only_in_val(path: Path) -> None:
    (path / "photos/val/fox").mkdir()
    shutil.copy(path / "photos/val/eel/16.png", path / "photos/val/fox")


def without(*names: str) -> Callable[[Path], Any]:
    return lambda path: [shutil.rmtree(path / "photos" / name) for name in names]


def put(name: str, content: bytes = b"") -> Callable[[Path], int]:
    return lambda path: (path / name).write_bytes(content)


def arrays(**changes: Any) -> Callable[[Path], Arrays]:
    return lambda path: arrays_in(path, **changes)


@pytest.mark.parametrize(
    ("kind", "spoil", "problem"),
    [
        (folder_in, without("val"), "photos/val is missing; use a folder"),
        (folder_in, without("train/dog", "val/dog", "train/eel", "val/eel"), "there is only one class"),
        (folder_in, lambda path: (path / "photos/train/ant").mkdir(), "photos/train/ant has no image"),
        (folder_in, lambda path: (path / "photos/train/gone").symlink_to("unmounted"), "train/gone cannot be read"),
        (folder_in, _class_only_in_val, "class 'fox' is in .*/val and not in .*/train"),
        (folder_in, without("val/dog"), "class 'dog' is in .*/train and not in .*/val"),
        (folder_in, put("photos/val/dog/notes.txt"), "val/dog/notes.txt is not a JPEG or PNG"),
        (folder_in, put("photos/val/dog/x.png", b"x"), "val/dog/x.png is not an image"),
        (folder_in, put("photos/val/dog/x.jpg", b"\xff\xd8\xff\xdacut"), "x.jpg is a trunc"),
        (records_in, put("train.rec"), "train.rec cannot be read"),
        (records_in, lambda path: (path / "val.rec").unlink(), "val.rec cannot be read .*; check the path"),
        (records_in, put("val.rec", part(0, record(PIXELS[0], 3.0))), "val.rec, record 0 has the label 3, .* 0 to 2"),
        (records_in, put("val.rec", part(0, record(PIXELS[0], 0.0, labels=(1.0, 2.0)))), "record 0 has several labels"),
        (arrays_in, lambda path: (path / "mine.npz").unlink(), "mine.npz cannot be read"),
        (arrays_in, put("mine.npz", b"junk"), "mine.npz is not a file of arrays"),
        (arrays_in, lambda path: np.savez(path / "mine.npz", x_train=PIXELS), "mine.npz has no y_train; it needs x_t"),
        (arrays_in, arrays(x_test=PIXELS[:12] / 255), "x_test is float64, .* images are uint8"),
        (arrays_in, arrays(x_test=PIXELS[:12]), "x_train and x_test have different sizes"),
        (arrays_in, arrays(y_train=np.zeros(47, int)), "y_train is int64, .*47.* each of 48 images"),
        (arrays_in, arrays(y_train=np.arange(48) % 3 + 1), "y_train has the label 3; labels .* 0 to 2"),
        (arrays_in, arrays(y_train=-np.arange(48)), "y_train has the label -1"),
        (arrays_in, arrays(y_test=np.arange(12)), "y_test has the label 3; labels of .* 0 to 2"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_spent(
    kind: Callable[[Path], Any], spoil: Callable[[Path], Any], problem: str, tmp_path: Path
) -> None:
    kind(tmp_path)
    spoil(tmp_path)
    with pytest.raises(UserError, match=f"^data: [^\n]*{problem}[^\n]*$"):
        data.identify([data.count(SPECS[kind], tmp_path)], source=None, cache=tmp_path / "cache")


def test_each_record_is_a_sign_of_life_and_one_that_is_cut_off_later_is_named(tmp_path: Path) -> None:
    signs, spec = [], data.count(records_in(tmp_path), tmp_path)
    for _ in range(2):  # the second time the checksum is in the cache
        signs.clear()
        dataset = data.load(spec, source=None, cache=tmp_path / "cache", alive=lambda: signs.append(0))
        assert len(signs) > spec.train_images + spec.validation
    os.truncate(tmp_path / "train.rec", 100)
    with pytest.raises(UserError, match=r"train.rec, record 47 has no image header"):
        dataset.train.center_crop(np.array([47]), spec)


def test_hidden_folders_and_links_back_hold_no_images(tmp_path: Path) -> None:
    spec = folder_in(tmp_path)
    before = data.count(spec, tmp_path)
    inside = next((tmp_path / "photos" / "train").iterdir())
    shutil.copytree(inside, inside / ".thumbnails")
    (inside / "back").symlink_to(inside)
    assert data.count(spec, tmp_path) == before


def test_a_folder_that_cannot_be_read_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, scandir = folder_in(tmp_path), os.scandir

    def denied(path: Any) -> Any:  # permissions do not hold for root
        if Path(path).name == "more":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(UserError, match=r"^data: .*/train/cat/more cannot be read \(Permission denied\)$"):
        data.count(spec, tmp_path)


def test_the_shorter_side_of_a_validation_image_follows_the_crop() -> None:
    assert [Folder("x", crop=crop).resized for crop in (224, 64)] == [256, 73]
    assert Folder("x", crop=64, resize=64).resized == 64
    with pytest.raises(UserError, match="crop: 64 is larger than resize=63"):
        Folder("x", crop=64, resize=63)


def test_a_recipe_with_too_few_images_or_too_large_a_crop_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    folder_in(tmp_path)
    arrays_in(tmp_path)
    fields = "model='cifar_resnet8_v2', kind='cpu', batch_per_device=12"
    for spec, problem in (
        (
            "Folder('photos', crop=32, resize=32), devices=[4, 8]",
            "global batch 96 is larger than the 48 training images",
        ),
        ("Arrays('mine.npz', crop=19)", "crop: 19 is larger than the images; use at most 18"),
        ("Folder('photo')", "photo/train is missing"),
        ("Folder(path='photos', corp=3)", "did you mean 'crop'"),
    ):
        (tmp_path / "mine.py").write_text(f"from poc import *\nrecipe = Recipe({fields}, data={spec})\n")
        with pytest.raises(UserError, match=f"^mine.py: [^\n]*{problem}[^\n]*$"):
            config.load(tmp_path / "mine.py", count=data.count)


def test_own_data_can_be_a_dimension_and_part_of_cases_and_quick_versions(tmp_path: Path) -> None:
    folder_in(tmp_path)
    records_in(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from poc import *\n"
        "own = [Folder('photos', crop=16, resize=20), CIFAR100()]\n"
        "others = Records(train='train.rec', val='val.rec', classes=3, crop=32)\n"
        "recipe = Recipe('cifar_resnet8_v2', batch_per_device='largest', kind='cpu', "
        "cases=[dict(data=own), dict(data=others)], quick=dict(data=own[0], cases=[{}]))\n"
    )
    recipe = config.load(tmp_path / "mine.py", count=data.count)
    assert [setting.data.train_images for setting in recipe.settings()] == [48, 50_000, 48]
    assert recipe.settings()[0].batches[-1] == 48
    assert [setting.data.train_images for setting in recipe.quick_version().settings()] == [48]


# CIFAR-100


def test_cifar_100_has_its_fine_labels_in_each_form(tmp_path: Path) -> None:
    rows, fine = (
        PIXELS.transpose(0, 3, 1, 2).reshape(len(PIXELS), -1),
        (np.arange(len(PIXELS)) * 5 + 9).astype(np.uint8),
    )
    content = np.column_stack([fine // 10, fine, rows])
    binary = {"train.bin": content[:15].tobytes(), "test.bin": content[15:].tobytes()}
    python = {
        name: python_2_batch(rows[part], fine[part]).replace(text("labels"), text("fine_labels"))
        for name, part in (("train", slice(15)), ("test", slice(15, None)))
    }
    archive = tar_of({f"cifar-100-binary/{name}": each for name, each in binary.items()})
    release = dataclasses.replace(RELEASES["cifar100"], train=15, validation=4, url="http://127.0.0.1:9/")
    forms = (binary, python, {"cifar-100-binary.tar.gz": archive})
    ids = set()
    for number, files in enumerate(forms):
        source = write(tmp_path / str(number), files)
        dataset: Any = data.load(CIFAR100(), source=source, cache=tmp_path / "cache", release=release)
        np.testing.assert_array_equal(dataset.train.images, PIXELS[:15])
        np.testing.assert_array_equal(dataset.validation.labels, fine[15:])
        ids.add(dataset.data_id)
    assert [each.name for each in ids] == ["cifar100"]
    with pytest.raises(UserError, match=r"does not contain CIFAR-100; .*train.bin and test.bin"):
        data.load(CIFAR100(), source=tmp_path, cache=tmp_path / "cache")
    fallback: Any = data.load(CIFAR100(), source=None, cache=tmp_path / "cache", fallback=True)
    assert (fallback.name, fallback.train.labels.max()) == ("synthetic", 99)


def test_accuracies_on_other_images_are_not_compared_with_the_main_study() -> None:
    from poc.published import load as studies

    changes: Any = {"name": "folder", "path": "", "classes": 3, "train_images": 1280, "validation": 12, "crop": 28}
    shown = [
        record_of(),
        record_of(run={"data": {"name": "cifar100"}}, dataset="cifar100", run_id="1"),
        record_of(run={"data": changes}, dataset="folder-3fa9c1", run_id="2"),
    ]
    published = studies([])
    results = Results(build(*shown, studies=published), published, "test machine")
    names = [subject.dataset for subject in results.subjects()]
    assert names[0] == "cifar10"
    assert sorted(names) == ["cifar10", "cifar100", "folder-3fa9c1"]
    for subject in results.subjects():
        assert len(results.headline(subject)) == 1
        assert len(results.published(subject)) == 0 or subject == Subject("cifar_resnet50_v2", "cifar10")
    assert len(results.published_machines(results.subjects()[0])) == 2
