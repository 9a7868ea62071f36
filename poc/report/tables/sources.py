"""Tables of what the other studies printed."""

from __future__ import annotations

from collections.abc import Sequence

from poc.report import cells
from poc.studies.row import Row


def study(rows: Sequence[Row], name: str) -> str:
    """Every row of one study, in the columns that it fills."""
    return _study_table([row for row in rows if row.study == name])


def keras(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The Keras study, table by table as in its text: title and Markdown of each."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.study == "keras_multi_gpu":
            groups.setdefault(_keras_title(row), []).append(row)
    return [(f"{title} ({len(members)} rows)", _study_table(members)) for title, members in groups.items()]


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


def _study_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        sizes = (
            "parameters dataset input_shape batch_per_device total_batch learning_rate devices exchange layout scaling"
        )
        speeds = "seconds_per_epoch samples_per_second"
        speeds += "".join(f" {part}_seconds_per_5120" for part in ("train", "communication", "sync"))
        ratios = {
            "speed-up without sync": row.speedup_without_sync,
            "speed-up by throughput": row.speedup_throughput,
            "efficiency": row.efficiency_throughput,
            "speed-up by wall time": row.speedup_wall,
            "efficiency by wall time": row.efficiency_wall,
        }
        lines.append(
            {
                "infrastructure": cells.infrastructure_of(row),
                **cells.columns(row, "framework"),
                "model": cells.network_of(row),
                **cells.columns(row, f"{sizes} exchange layout scaling epochs accuracy {speeds}"),
                **{title: cells.five_digits(ratio) for title, ratio in ratios.items()},
                **cells.columns(row, "printed"),
                "note": "; ".join(filter(None, [row.note, f"contradicts itself: {row.flag}" if row.flag else ""])),
            }
        )
    return cells.markdown(lines)
