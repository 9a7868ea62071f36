"""A model of timm on images in folders: ResNet-18 on 10,000 images of CIFAR-10 in a folder per class.

    ./make_environment.sh --torch
    .venv/bin/python -m pip install --no-deps -r requirements/timm.txt    # with GPUs .venv-pytorch/bin/python
    .venv/bin/python -m tools.image_folders images    # or a folder of your own
    ./run_all.sh examples/timm_folder.py
Cost: about a minute per seed on two CPU cores with AVX-512.
"""

from poc import Folder, Linear, Recipe

recipe = Recipe(
    model="timm:resnet18",
    data=Folder("../images", crop=32, scale=0.3),
    kind=["gpu", "cpu"],
    lr=Linear(base=0.05, per=128, warmup_epochs=1, decay="cosine"),
    epochs=5,
    seeds=3,
)
