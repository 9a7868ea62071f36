"""results.md, its figures and rows.csv, made from records and published rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from poc.records import timing
from poc.records.record import Record
from poc.report import cells, compare, figures, rows, summary, ways
from poc.report.tables import batches, runs, scaling, sources, speed
from poc.studies import Study
from poc.studies.prices import Prices
from poc.studies.row import Row, to_csv

Figures = dict[str, tuple[Path, str]]


def write(
    records: Sequence[Record], published: Sequence[Study], *, page: Path, folder: Path, prices: Prices | None = None
) -> None:
    """Writes `page`, and rows.csv and figures/ in `folder`, whose links are relative to where `page` is.

    `prices` are those of machines.
    The same records give the same bytes, in whatever order they come. Each file is replaced at once or not at all.
    """
    records = rows.ordered(records)
    table = rows.collect(records, published)
    shown, standing = [row for row in table if not row.superseded], rows.last_takes(records)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = figures.draw(shown, standing, folder / "figures")
    _replace(folder / "rows.csv", to_csv(table))
    _replace(page, _page(shown, standing, published, runs.takes(table), drawn, page.parent, folder))


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)  # mkstemp's files are for their owner alone
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _page(
    table: Sequence[Row],
    records: Sequence[Record],
    published: Sequence[Study],
    takes: str,
    drawn: Figures,
    here: Path,
    folder: Path,
) -> str:
    def link(path: Path) -> str:
        return Path(os.path.relpath(path, here)).as_posix()

    def figure(name: str) -> str:
        if name not in drawn:
            return ""
        path, caption = drawn[name]
        return f"![{caption}]({link(path)})\n\n*{caption}*"

    # A fixed batch measures a network and nothing else.
    usual = [row for row in table if not row.fixed]
    usual_records = [record for record in records if not record.run.data.fixed]
    sections = (
        ("Accuracy and throughput", _accuracy(table, published[0], figure("accuracy_throughput"))),
        (
            "Which learning rate keeps the accuracy",
            _rates(table, records, published[0], *map(figure, ("accuracy_batch", "accuracy_worth", "noise_scale"))),
        ),
        ("Throughput against batch size", _throughput(usual, usual_records, figure("throughput_batch"))),
        ("How near to the limit", _limits(table, figure("roofline"))),
        ("One engine against the other", _engines(table)),
        ("The same run with several seeds", _repeats(table)),
        (
            "Speed-up and efficiency",
            _speedups(table, *map(figure, ("throughput_devices", "speedup_workers", "speedup_reconciled"))),
        ),
        ("Ways to exchange gradients", _exchanges(table, records, figure("staleness"))),
        ("Where the time went", _time(usual, usual_records, figure("time_split"))),
        ("Convergence", _convergence(records, figure("learning_curves"), figure("accuracy_time"))),
        ("What the hardware did", _hardware(usual, usual_records)),
        (f"The other {_counted(published[1:])} studies", _studies(table, published[1:])),
        ("How it was measured", _method(records)),
        ("Runs taken more than once", _after("Every table above shows the last take of a run that completed.", takes)),
        ("Runs skipped, failed or diverged", _not_run(records)),
    )
    blocks = [
        "# How fast data-parallel training goes: results",
        summary.summary(table, usual_records),
        _reading(link(folder / "rows.csv")),
    ]
    for title, body in sections:
        if body:
            blocks += [f"## {title}", body]
    return "\n\n".join(blocks) + "\n"


def _blocks(*blocks: str) -> str:
    return "\n\n".join(block for block in blocks if block)


def _after(words: str, table: str, *between: str) -> str:
    """A table under the words that explain it, and what stands between them; nothing where it has no rows."""
    return _blocks(words, *between, table) if table else ""


def _reading(csv: str) -> str:
    return (
        "This page is made by `python -m poc report` from the journal of runs and from what five earlier studies "
        "printed; nothing in it is typed by hand. Every row says where it comes from: `measured` ones ran on the "
        "machine that they name, `published` ones stand as their source printed them. Total batch = batch per device x "
        "devices; a figure's spread and the number of windows (n) it is the median of stand beside it. All rows, with "
        f"more columns, are in [rows.csv]({csv})."
    )


def _accuracy(table: Sequence[Row], main: Study, figure: str) -> str:
    return _blocks(
        f"Training on CIFAR-10, in the columns of the study {main.title} ({main.about}), "
        "like beside like. `gpus` is 0 for a CPU. Accuracy is over the whole validation set after the last epoch; it "
        "moves by some hundredths from one epoch to the next while the learning rate is high, hence the mean of the "
        "last four. `s/epoch` is training and waiting for data, without evaluation: a median over whole epochs. "
        "`cifar10 (jpeg)` and `synthetic` are explained under *How it was measured*.",
        figure,
        speed.accuracy(table),
    )


def _rates(table: Sequence[Row], records: Sequence[Record], main: Study, kept: str, worth: str, noise: str) -> str:
    def heading(comparison: ways.Comparison) -> str:
        label = cells.network_label(comparison.network)
        return f"### {label}, {comparison.epochs} epochs of {comparison.dataset}"

    compared = ways.comparisons(records)
    if not compared:
        return ""
    first, scales = compared[0], batches.noise_scales(compared[0])
    blocks = [
        "A larger total batch takes fewer steps in as many epochs, and the usual rules of scaling the rate lose "
        "accuracy. Here ways to train are compared at each total batch, over as many epochs of the same images; "
        "batches of several devices are played by virtual ones, whose accuracy is that of real ones. *The study's way* "
        f"is that of {main.title}: SGD at a constant rate, a random crop of the padded image, mirrored, its colours "
        "moved. Accuracy is that after the last epoch, of one run each unless a seed says otherwise.",
        kept,
        heading(first),
        batches.kept(first, table),
        batches.suffering(first),
        _after("What every run gave:", batches.tried(first)),
        "Cost of accuracy: epochs until that validation accuracy, and the seconds that so many epochs take at the "
        "published speed of the fastest setting with that total batch (a prediction: these devices did not run this "
        "way).",
        batches.cost_of_accuracy(first, table),
        worth,
        _after(
            "Gradient noise scale (McCandlish et al. 2018), in samples: the batch at which a gradient is half noise. "
            "Below it twice the batch nearly halves the steps; beyond it more devices pay less and less.",
            _blocks(scales, noise) if scales else "",
        ),
    ]
    for comparison in compared[1:]:
        cheaper = "Something cheaper, on which ways were sought before the runs above."
        blocks += [heading(comparison), cheaper, batches.tried(comparison)]
    return _blocks(*blocks)


def _throughput(table: Sequence[Row], records: Sequence[Record], figure: str) -> str:
    return _after(
        "One device, and runs that measured nothing but throughput. A row stands against the one above where they "
        "differ in batch and learning rate only, or in nothing; a measured change comes with its 95% margin (Welch's "
        "t interval over the windows of each run; what differs between runs is not in it).",
        speed.throughput(table),
        figure,
        *speed.largest_batches(records),
    )


def _limits(table: Sequence[Row], figure: str) -> str:
    return _after(
        "Every network on one device, beside what the studies printed for it. GFLOP/s: the arithmetic of training, "
        f"{rows.FLOPS_RULE}. Peak: a product of large square matrices in the same precision, on the same device in the "
        "same process right after the run, the fastest of several; of peak: the one over the other. A fixed batch "
        "stays in the device's memory, so no input pipeline is in the figure. `python -m poc networks` lists the "
        "networks with their sources.",
        speed.measured_networks(table),
        figure,
    )


def _engines(table: Sequence[Row]) -> str:
    return _after(
        "The same recipe with one engine and with another on the same machine: samples/s are medians over the runs of "
        "a column, a ratio is of two runs one right after the other, the middle of all such pairs with its spread.",
        speed.engines(table),
    )


def _repeats(table: Sequence[Row]) -> str:
    return _after(
        "Runs that differ only in their seed: mean, standard deviation and number. A difference is called noise where "
        "it is within the 95% margin of Welch's t interval.",
        speed.repeats(table),
    )


def _speedups(table: Sequence[Row], devices: str, workers: str, reconciled: str) -> str:
    explained = (
        "Why the two speed-ups differ: throughput sees only the usual window, wall time all of the run. With S the "
        "speed-up by throughput, o the seconds for each sample that a part took beyond what throughput shows (o1 on "
        "one device) and w the wall seconds for each sample, that part changes the speed-up by (o1 - S x o) / w: it "
        "costs as far as it does not shrink S times. By throughput, plus all parts, is by wall time. Train: windows "
        "slower than the median one; wait for data and warm-up likewise: what they took beyond the usual."
    )
    return _blocks(
        f"{compare.SERIES_RULE[0].upper()}{compare.SERIES_RULE[1:]}. Efficiency is speed-up / devices. Speed-up by "
        "throughput: samples/s of n devices / those of one. By epoch time: seconds of an epoch, likewise; where the "
        f"two are far apart a printed figure is wrong. {compare.WALL_RULE[0].upper()}"
        f"{compare.WALL_RULE[1:]}.",
        devices,
        scaling.speedups(table),
        "### With and without synchronisation",
        "Seconds for 5,120 images, over all devices together, so they fall as devices are added. The Theano study "
        "left the time that GPUs wait for each other out of its speed-ups; with it they are those of throughput.",
        workers,
        scaling.with_and_without_sync(table),
        _after(f"### The two speed-ups reconciled\n\n{explained}", scaling.reconciliation(table), reconciled),
    )


def _exchanges(table: Sequence[Row], records: Sequence[Record], figure: str) -> str:
    return _blocks(
        _after(
            "Runs that differ only in how gradients travel, fastest first. `independent` exchanges none and is the "
            "ceiling; a difference from it comes with its 95% margin (Welch's t interval over windows), which knows "
            "nothing of how a shared machine's speed changes from one run to the next. In pairs: what a step without "
            "the exchange, and the wait for the slower worker, are of a whole step, from windows of one run that took "
            "turns. Exposed: a step with the exchange - one without, likewise. Bus bandwidth: n bytes x 2 (devices - "
            "1) / devices / seconds of an exchange alone, n being those of the gradients in 32 bits.",
            scaling.exchanges(table, records),
        ),
        _after(
            "### Bounded staleness\n\nStale synchronous parallel (Ho et al. 2013): a worker waits where it is more "
            "than the bound ahead of the slowest. Steps ahead are counted whenever a worker goes on, over all workers.",
            scaling.staleness(table, records),
            figure,
        ),
    )


def _time(table: Sequence[Row], records: Sequence[Record], figure: str) -> str:
    return _blocks(
        _after(
            "Wall time from the start of a run's process to its end, in parts that do not overlap and add up to it. "
            "Initialise: imports, data, network. Warm-up: the windows left out of throughput. Wait for data: training "
            "stood still for the next batch. Rest: what no part claimed.",
            runs.split(table),
            figure,
        ),
        _after(
            "Each worker of the runs that had several (the table above shows the slowest):", runs.worker_split(records)
        ),
    )


def _convergence(records: Sequence[Record], epochs: str, time: str) -> str:
    return _after(
        "Validation accuracy after each epoch, and minutes of wall time, evaluations included, until it first reached "
        "a round figure; empty where it never did.",
        runs.convergence(records),
        epochs,
        time,
    )


def _hardware(table: Sequence[Row], records: Sequence[Record]) -> str:
    return _blocks(
        _after("Memory at its peak, and what else the machine was doing (mean over the run):", runs.memory(table)),
        _after(
            "Sampled once a second during the run, means; empty where the machine has no such counter:",
            runs.hardware(records),
        ),
        _after(
            "Computation and communication apart: medians a step of a separate pass after the training. Exposed: whole "
            "step - computation alone. Hidden: the rest of the exchange. Bus bandwidth: n bytes x 2 (devices - 1) / "
            "devices / seconds of an exchange.",
            runs.detail(records),
        ),
        _after("Cost at the price that was given:", runs.costs(records)),
    )


# What the page says of studies that it knows: the heading, and words below it.
_KNOWN = {
    "theano_mpi": ("Theano-MPI: five networks on 1 to 8 GPUs", ""),
    "keras_multi_gpu": (
        "Keras and TensorFlow on several GPUs",
        "Its Keras runs split a total batch over the GPUs (strong scaling), its tf_cnn_benchmarks runs had 32 samples "
        "on each (weak scaling): the two are not to be compared with one another.",
    ),
    "hacksa_horovod": (
        "Horovod: VGG, Inception and ResNet on CIFAR-10",
        "It prints no values, only that its two speed-ups contradict each other.",
    ),
    "pmls_caffe": ("PMLS-Caffe: AlexNet and GoogLeNet on 8 nodes", ""),
}


def _counted(studies: Sequence[Study]) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return words[len(studies)] if len(studies) < len(words) else str(len(studies))


def _studies(table: Sequence[Row], published: Sequence[Study]) -> str:
    def folded(title: str, body: str) -> str:
        return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"

    blocks = []
    for study in published:
        source = ", ".join(filter(None, [study.authors, study.year, study.address]))
        heading, words = _KNOWN.get(study.name, (study.title or study.name, f"{source}." if source else ""))
        blocks += [f"### {heading}", words]
        if study.name == "keras_multi_gpu":
            blocks += [folded(title, body) for title, body in sources.keras(table)]
        elif study.name == "theano_mpi":
            blocks.append(folded("Its rows", sources.study(table, study.name)))
        else:
            blocks.append(sources.study(table, study.name))
    return _blocks(
        f"What {_counted(published)} other studies printed, in the same columns as far as they fill them. A speed-up "
        "or efficiency that a source does not print is worked out from its own figures where they suffice.",
        *blocks,
    )


def _method(records: Sequence[Record]) -> str:
    lines = [
        "- A window is a stretch of steps between two points where all work of the devices is drained; only there is "
        "the clock read. Nothing is waited for in between.",
        "- Throughput is the median over windows after warm-up of samples / seconds, waiting for data included. "
        f"Warm-up: {timing.WARMUP_RULE}.",
        "- Spread is 1.4826 x the median absolute deviation over these windows, which is the standard deviation if "
        "they are normally distributed. n is their number.",
        "- With several workers a window has the samples of all and the seconds of the slowest.",
        "- Accuracy is over the whole validation set, each image once, whatever the number of devices.",
        "- Virtual devices are played in turn by a real one: gradients are summed before the update and batch "
        "statistics stay apart, so the accuracy is that of real devices; the throughput is not.",
        "- Each run has a process of its own; the id of a run is a hash of what it computes.",
        "- `cifar10` are the original images. `cifar10 (jpeg)` are copies compressed with loss, so accuracy on them "
        "may differ a little from that on the originals. `synthetic` is made-up data: good for speed alone.",
    ]
    return _blocks("\n".join(lines), _after("Machines:", runs.machines(records)))


def _not_run(records: Sequence[Record]) -> str:
    return _after("Runs of one reason in one line; those that succeeded later are left out.", runs.not_run(records))
