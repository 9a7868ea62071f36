"""The networks that the suite knows, by registry name: what every engine has to build, and what a step of it costs.

Parameters, multiply-adds and activations are those of the networks as they are built here; a test counts them in their
graphs. Where a source prints another number of parameters, `note` says why.
"""

from __future__ import annotations

from typing import Any

from poc.values import UserError, nearest, value

MEAN = (123.68, 116.779, 103.939)
"""Subtracted per channel (RGB) from images in 0..255: as in MXNet 0.11's `train_cifar10.py`."""
# ImageNet's, over all channels.
_DEVIATION = 58.0
_SHARED = 1.4


@value
class Network:
    """One network of the registry."""

    name: str
    label: str
    """What the studies call it."""
    source: str
    classes: int
    """Of the data set that it was made for; it is built for as many as there are."""
    input_size: int
    """Height and width of the images that it was made for, in pixels."""
    sizes: tuple[int, int]
    """The smallest and the largest images that it takes."""
    parameters: int
    """Trained ones, at `classes` and `input_size`."""
    forward_multiply_adds: int
    """Of one image's forward pass through convolutions and dense layers, at `input_size`."""
    activations: int
    """Values that all layers put out for one image of `input_size`."""
    note: str = ""
    printed_as: tuple[str, ...] = ()
    """Names under which the studies print it."""
    preactivation_layers: int = 0
    """Of He et al. 2016's pre-activation ResNets for CIFAR, which have a batch norm on the input; 0: it is none."""
    batch_norm: bool = True

    @property
    def input_scale(self) -> float:
        """What images less `MEAN` are multiplied by; those with a batch norm on the input get them as they are."""
        return 1.0 if self.preactivation_layers else 1 / _DEVIATION

    def multiply_adds(self, size: int) -> float:
        """Multiply-adds of one forward pass over one `size` x `size` image; a training step costs three times that."""
        return self.forward_multiply_adds * (size / self.input_size) ** 2

    def memory_bytes(self, size: int, batch: int) -> float:
        """Roughly what training takes in float32: values and gradients of all layers, parameters, momentum.

        MXNet shares the memory of many layers: measured peaks were 0.7 to 1.3 times the layers' values.
        """
        return 4 * (_SHARED * self.activations * (size / self.input_size) ** 2 * batch + 3 * self.parameters)

    def check_input(self, size: int) -> None:
        """Raises UserError unless it takes images of `size` x `size` pixels."""
        smallest, largest = self.sizes
        if not smallest <= size <= largest:
            allowed = f"of {smallest}" if smallest == largest else f"of {smallest} to {largest}"
            raise UserError(f"data: crop: {size} is not allowed with {self.name}; give images {allowed} pixels")


_HE_2015 = "He et al. 2016, Deep Residual Learning for Image Recognition"
_HE_2016 = "He et al. 2016, Identity Mappings in Deep Residual Networks"
_STUDY = f"{_HE_2016}, as in MXNet 0.11's CIFAR-10 example"
_DENSE = "Huang et al. 2017, Densely Connected Convolutional Networks"
_VGG = "Simonyan and Zisserman 2015, Very Deep Convolutional Networks"
_FLEXIBLE = (8, 64)

# Parameters, multiply-adds and activations of each network.
_COSTS: dict[str, tuple[int, int, int]] = {
    "cifar_resnet8_v2": (78_109, 12_763_776, 281_674),
    "cifar_resnet20_v2": (272_541, 41_075_328, 683_082),
    "cifar_resnet32_v2": (466_973, 69_386_880, 1_084_490),
    "cifar_resnet44_v2": (661_405, 97_698_432, 1_485_898),
    "cifar_resnet50_v2": (758_621, 111_854_208, 1_686_602),
    "cifar_resnet56_v2": (855_837, 126_009_984, 1_887_306),
    "cifar_resnet110_v2": (1_730_781, 253_411_968, 3_693_642),
    "cifar_resnet164_v2": (1_703_261, 247_646_720, 11_631_882),
    "cifar_resnet20_v2_no_norm": (271_162, 41_075_328, 491_594),
    "cifar_resnet20_v1": (272_474, 40_813_184, 659_530),
    "cifar_resnet32_v1": (466_906, 69_124_736, 1_060_938),
    "cifar_resnet44_v1": (661_338, 97_436_288, 1_462_346),
    "cifar_resnet50_v1": (758_554, 111_592_064, 1_663_050),
    "cifar_resnet56_v1": (855_770, 125_747_840, 1_863_754),
    "cifar_resnet110_v1": (1_730_714, 253_149_824, 3_670_090),
    "cifar_resnet164_v1": (1_714_234, 244_500_992, 11_616_522),
    "cifar_densenet40_k12": (1_019_722, 264_812_928, 7_204_810),
    "cifar_densenet100_k12": (6_979_642, 1_769_516_448, 43_401_370),
    "cifar_alexnet": (1_756_426, 32_778_112, 218_250),
    "cifar_vgg16": (14_986_698, 313_463_808, 862_218),
    "cifar_vgg19": (20_297_674, 398_398_464, 942_090),
    "cifar_inception": (1_651_114, 266_734_880, 1_861_978),
    "cifar_lenet": (62_006, 651_720, 14_602),
    "cifar_mlp": (402_250, 402_048, 394),
    "alexnet": (61_100_840, 714_188_480, 1_083_880),
    "vgg16": (138_357_544, 15_470_264_320, 28_650_984),
    "vgg19": (143_667_240, 19_632_062_464, 31_260_136),
    "googlenet": (6_624_904, 1_498_376_192, 12_334_584),
    "inception_v3": (23_834_568, 5_713_216_096, 32_288_232),
    "inception_v4": (42_679_816, 12_253_974_624, 57_402_280),
    "resnet50_v1": (25_575_912, 3_857_973_248, 35_979_240),
    "resnet50_v2": (25_549_480, 4_089_184_256, 36_606_440),
    "resnet101_v1": (44_589_800, 7_570_194_432, 54_745_064),
    "resnet101_v2": (44_541_608, 7_801_405_440, 55_372_264),
    "resnet152_v1": (60_252_648, 11_282_415_616, 77_926_376),
    "resnet152_v2": (60_185_256, 11_513_626_624, 78_553_576),
    "densenet121": (7_978_856, 2_834_161_664, 48_785_640),
}


def _cifar(name: str, label: str, source: str, **fields: Any) -> Network:
    return _network(name, f"{label} (CIFAR)", source, **{"classes": 10, "input_size": 32, "sizes": _FLEXIBLE, **fields})


def _imagenet(name: str, label: str, source: str, *, size: int = 224, **fields: Any) -> Network:
    return _network(name, label, source, classes=1000, input_size=size, sizes=(size, size), **fields)


def _network(name: str, label: str, source: str, **fields: Any) -> Network:
    parameters, multiply_adds, activations = _COSTS[name]
    return Network(
        name=name,
        label=label,
        source=source,
        parameters=parameters,
        forward_multiply_adds=multiply_adds,
        activations=activations,
        **fields,
    )


def _preactivation(layers: int) -> Network:
    return _cifar(
        f"cifar_resnet{layers}_v2",
        f"ResNet-{layers}",
        _STUDY if layers < 164 else f"{_HE_2016}, of bottlenecks",
        preactivation_layers=layers,
    )


def _postactivation(layers: int) -> Network:
    note = {
        20: "printed 271,164 (tf_cnn_benchmarks, with an eleventh class)",
        110: "printed 1,736,124 (tf_cnn_benchmarks, with an eleventh class)",
    }.get(layers, "")
    return _cifar(
        f"cifar_resnet{layers}_v1",
        f"ResNet-{layers} v1",
        _HE_2015 if layers < 164 else f"{_HE_2016}: the original ResNet-164, of bottlenecks",
        printed_as=(f"resnet{layers}",),
        note=note,
    )


NETWORKS: dict[str, Network] = {
    network.name: network
    for network in [
        *(_preactivation(layers) for layers in (8, 20, 32, 44, 50, 56, 110, 164)),
        _cifar(
            "cifar_resnet20_v2_no_norm",
            "ResNet-20, no batch norm",
            "an ablation of ours: cifar_resnet20_v2 without its batch norms, for exact comparisons between devices",
            preactivation_layers=20,
            batch_norm=False,
        ),
        *(_postactivation(layers) for layers in (20, 32, 44, 50, 56, 110, 164)),
        _cifar(
            "cifar_densenet40_k12",
            "DenseNet-40 (k=12)",
            _DENSE,
            printed_as=("densenet40_k12",),
            note="the paper's, without bottlenecks: 1.0 million; printed 364,772 by another",
        ),
        _cifar(
            "cifar_densenet100_k12",
            "DenseNet-100 (k=12)",
            _DENSE,
            printed_as=("densenet100_k12",),
            note="the paper's, without bottlenecks: 7.0 million; printed 2,259,652 by another",
        ),
        _cifar(
            "cifar_alexnet",
            "AlexNet",
            "Krizhevsky's cuda-convnet, as in tf_cnn_benchmarks",
            sizes=(32, 32),
            printed_as=("alexnet",),
            note="printed 1,756,620, which has an eleventh class: 193 of the 194 more",
        ),
        *(
            _cifar(
                f"cifar_vgg{layers}",
                f"VGG-{layers}",
                f"{_VGG}; batch norm, and dense layers of 512",
                sizes=(32, 63),
                printed_as=(f"vgg_{layers}",),
            )
            for layers in (16, 19)
        ),
        _cifar(
            "cifar_inception",
            "Inception",
            "MXNet's Inception with batch norm for 28x28 images, after Ioffe and Szegedy 2015",
        ),
        _cifar("cifar_lenet", "LeNet-5", "LeCun et al. 1998, for three colours", sizes=(32, 32)),
        _cifar("cifar_mlp", "MLP 128-64", "the perceptron of MXNet's examples", sizes=(32, 32), printed_as=("mlp",)),
        _imagenet(
            "alexnet", "AlexNet", "Krizhevsky 2014, One weird trick for parallelizing CNNs", printed_as=("alexnet",)
        ),
        _imagenet("vgg16", "VGG-16", _VGG, printed_as=("vgg16",)),
        _imagenet("vgg19", "VGG-19", _VGG),
        _imagenet(
            "googlenet",
            "GoogLeNet",
            "Szegedy et al. 2015, Going Deeper with Convolutions; batch norm, without the auxiliary classifiers",
            printed_as=("googlenet",),
        ),
        _imagenet(
            "inception_v3",
            "Inception-v3",
            "Szegedy et al. 2016, Rethinking the Inception Architecture; without the auxiliary classifier",
            size=299,
            printed_as=("inceptionv3",),
        ),
        _imagenet(
            "inception_v4",
            "Inception-v4",
            "Szegedy et al. 2016, Inception-v4, Inception-ResNet",
            size=299,
            printed_as=("inception_v4",),
        ),
        *(
            _imagenet(
                f"resnet{layers}_v{version}",
                f"ResNet-{layers} v{version}",
                source,
                printed_as=(f"resnet{layers}",) if version == 1 else (),
            )
            for layers in (50, 101, 152)
            for version, source in ((1, _HE_2015), (2, _HE_2016))
        ),
        _imagenet("densenet121", "DenseNet-121", _DENSE),
    ]
}


def network(name: str) -> Network:
    """Returns the registered network called `name`; raises UserError with the nearest valid name."""
    if not isinstance(name, str) or name not in NETWORKS:
        raise UserError(f"model: unknown network {name!r}; {nearest(name, NETWORKS)}")
    return NETWORKS[name]
