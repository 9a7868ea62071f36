"""Tables of what the other studies printed."""

from __future__ import annotations

from collections.abc import Sequence

from poc.records.row import Row
from poc.report.cells import figure_of, five_digits, infrastructure_of, markdown, network_of, plain

_STUDY_COLUMNS = (
    *("infrastructure", "framework", "model", "parameters", "data", "input", "batch per device", "total batch"),
    *("learning rate", "devices", "exchange", "layout", "scaling", "epochs", "accuracy", "s/epoch", "samples/s"),
    *("train (s/5,120)", "communication (s/5,120)", "sync (s/5,120)", "speed-up without sync"),
    *("speed-up by throughput", "efficiency", "speed-up by wall time", "efficiency by wall time"),
    *("the source's text", "note"),
)


def study(rows: Sequence[Row], name: str) -> str:
    """Every row of one study, in the columns that it fills."""
    return _study_table([row for row in rows if row.study == name])


def keras(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The Keras study, table by table as in its text: title and Markdown of each."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.study == "keras_multi_gpu":
            groups.setdefault(_keras_title(row), []).append(row)
    return [(f"{title} ({len(found)} rows)", _study_table(found)) for title, found in groups.items()]


def _keras_title(row: Row) -> str:
    if row.network == "keras_cifar10_cnn":
        return "avolkov1 on a small CIFAR-10 network: the total batch is split, so strong scaling"
    if row.network == "mlp":
        return "kuza55 on an MLP: the total batch is split, so strong scaling"
    if row.network == "alexnet" and row.dataset == "imagenet (synthetic)":
        return "Memory clocks, one GPU at a time" if row.devices == 1 else "PIX against PHB: how two GPUs are linked"
    if row.network in ("inceptionv3", "resnet50") and row.infrastructure in ("az-2x-m60", "7gforce"):
        if row.framework.startswith("TensorFlow") and not row.scaling:
            return "tf_cnn_benchmarks on one GPU, NCHW and NHWC"
        name = {"inceptionv3": "InceptionV3", "resnet50": "ResNet-50 (ImageNet)"}[row.network]
        return f"{name}: Keras codes split a batch of 32 (strong), tf_cnn_benchmarks has 32 a GPU (weak)"
    if row.dataset == "cifar10" and row.infrastructure == "az-2x-m60":
        return "tf_cnn_benchmarks on CIFAR-10 with two Tesla M60"
    if row.layout:
        return "Data layout"
    return "TensorFlow's own benchmarks, and figures of the text"


def _study_table(found: Sequence[Row]) -> str:
    cells = []
    for row in found:
        note = "; ".join(filter(None, [row.note, f"contradicts itself: {row.flag}" if row.flag else ""]))
        values = (
            *(infrastructure_of(row), row.framework, network_of(row), figure_of(row, "parameters", 0), row.dataset),
            *(row.input_shape, figure_of(row, "batch_per_device", 0), figure_of(row, "total_batch", 0)),
            *(plain(row.learning_rate), figure_of(row, "devices", 0), row.exchange, row.layout),
            *(row.scaling, figure_of(row, "epochs", 0), plain(row.accuracy)),
            *(figure_of(row, "seconds_per_epoch", 1), figure_of(row, "samples_per_second", 1)),
            *(figure_of(row, f"{part}_seconds_per_5120", 2) for part in ("train", "communication", "sync")),
            *(five_digits(row.speedup_without_sync), five_digits(row.speedup_throughput)),
            *(five_digits(row.efficiency_throughput), five_digits(row.speedup_wall), five_digits(row.efficiency_wall)),
            *(row.printed, note),
        )
        cells.append(dict(zip(_STUDY_COLUMNS, values)))
    return markdown(cells)
