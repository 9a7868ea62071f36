"""Whether a search for the learning rate finds what the full grid finds: two small models on CIFAR-10, five seeds.

At each global batch a search and then the whole grid of its 10 rates, all on the same validation split; the candidates
that a search trains to the end are runs of both. results/ has the table "Searches against the full grid" among its
details. On a CPU, and with one seed: `--set kind=cpu --set seeds=1`.
    ./run_all.sh learning_rate_grid
"""

from poc import CIFAR10, Recipe, Search

search = Search(low=0.005, high=2.56, points=10)
sizes = {"cifar_resnet8_v2": 28, "cifar_lenet": 32}

recipe = Recipe(
    model="cifar_resnet8_v2",
    epochs=8,
    kind="gpu",
    priority=9,
    batch_per_device=[128, 512, 2048],
    seeds=5,
    cases=[
        *(dict(model=model, lr=search, data=CIFAR10(crop=size)) for model, size in sizes.items()),
        *(
            dict(model=model, lr=search.rates, data=CIFAR10(crop=size, validate_on="held-out"))
            for model, size in sizes.items()
        ),
    ],
    quick=dict(cases=[dict(lr=search.rates[:2])], seeds=1, steps=8, window=2, evaluate=False),
)
