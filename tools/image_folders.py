"""Write images of CIFAR-10 as PNG files in FOLDER/train/CLASS/ and FOLDER/val/CLASS/, as `Folder` reads them.

.venv/bin/python -m tools.image_folders FOLDER    # 1,000 training images and 200 for validation of each class
"""

import os
import sys
from pathlib import Path

import cv2
import numpy as np

from poc import data
from poc.config import CIFAR10
from poc.host import environment

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
TRAIN, VALIDATION = 1_000, 200  # images of each class: its first ones


def write(folder: Path, dataset: data.Dataset) -> None:
    """Write the first images of each class of both splits."""
    for name, split, count in (("train", dataset.train, TRAIN), ("val", dataset.validation, VALIDATION)):
        assert isinstance(split, data.Images)
        for number, title in enumerate(CLASSES):
            (folder / name / title).mkdir(parents=True)
            for index in np.flatnonzero(split.labels == number)[:count]:
                path = folder / name / title / f"{index}.png"
                path.write_bytes(cv2.imencode(".png", split.images[index][..., ::-1])[1].tobytes())


if __name__ == "__main__":
    folder, source = Path(sys.argv[1]), os.environ.get("POC_DATA")
    if folder.exists():
        sys.exit(f"{folder} exists already: name another folder")
    images = data.load(CIFAR10(), source=Path(source) if source else None, cache=environment.cache())
    if images.name == "synthetic":
        sys.exit("CIFAR-10 is missing: set POC_DATA")
    write(folder, images)
