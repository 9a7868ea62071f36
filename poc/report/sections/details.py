"""The pages of details: learning rate, scaling, models, published studies, and how it was measured."""

import math
from typing import Any

import pandas as pd

from poc.config.networks import NETWORKS
from poc.published import MAIN_RECIPE, Study
from poc.records import timing
from poc.records.record import BUSY_SHARE, COMPLETED, LAUNCH_BOUND_SHARE, SKIPPED, is_launch_bound
from poc.report import markdown, repeats
from poc.report.markdown import RATE, Block, listing, section
from poc.report.results import Results, is_synchronous, preferred, trainings
from poc.report.sections import scaling, search
from poc.report.table import FLOPS_RULE, TRAINING

_RULES = f"""## Rules

- The clock is read only between windows: a number of steps after which all work of the devices has finished. A run's
  samples/s are the median over windows after warm-up, waiting for data included. Warm-up: {timing.WARMUP_RULE}.
- A repeat is one run in processes of its own. Repeats of a setting differ only in the seed: what they compute, machine,
  framework version, images and environment are the same. Tables show the median over repeats of one setting.
- A burst is cut by steps or seconds to measure throughput, a training ends with an epoch. They are never pooled.
- A repeat is noisy if other processes, or other machines on the same hardware, took more than {BUSY_SHARE:.0%} of the
  cores that it could use, or had over 2 GiB on one of its GPUs. Noisy repeats count only if all are noisy.
- A speed-up compares repeats that started within an hour of one on the other side. `poc compare` tests whether two
  runs differ significantly.
- FLOP/s: {FLOPS_RULE}. MFU: share of the FLOP/s
  of a product of large matrices on the same devices in the same precision, the best of all runs on that machine.
- Accuracy is that of the test set, each image once, after the last epoch.
- Emulated devices: one device computes the micro-batches of all and sums their gradients; each has its own batch
  statistics. The accuracy is that of real devices; no page shows the speed.
- `cifar10` are the original images, `cifar10 (jpeg)` JPEG copies, on which the main study's own script also stays below
  what it printed. `synthetic` images are generated and serve for speed alone.
- Dollars are prices of whole instances, on demand unless a price was given."""


def learning_rate(results: Results) -> list[Block]:
    """Return the accuracy of every training, of tuning runs, and the gradient noise scale of runs that measured it."""
    order = ["elsewhere", "model", "global_batch", "accuracy"]
    rows = trainings(results.measured).sort_values(order, ascending=[True, True, True, False])
    on_test_set = rows.accuracy_on == "test set"
    columns: tuple[markdown.Column, ...] = (
        *("machine", "model, framework", "global batch", "training recipe", "lr"),
        *(("epochs", _epochs), "devices, kvstore", "accuracy"),
    )
    about = (
        "Whole trainings, quick runs aside. Accuracy on the test set after the last epoch, median over n seeds. The "
        f"baseline recipe is {MAIN_RECIPE}."
    )
    tuning = (
        "Accuracy on the validation split, a tenth of the training images (at most 5,000), after training on the "
        "others."
    )
    rates = search.found(results)
    return [
        *listing("Every training", about, rows[on_test_set], *columns),
        *listing("Tuning runs", tuning, rows[~on_test_set], *columns),
        *listing(
            "Learning rates found by searches",
            "Accuracy on the test set, after a search on the validation split, with the learning rate that was found, "
            "and with those to which the rules scale the one of the smallest batch (change from the rate found; "
            "learning rate, or the seeds' range). Medians over n seeds; the batch is the global one.",
            rates.sort_values(["elsewhere", "model", "global_batch"], kind="stable") if len(rates) else rates,
            *("machine", "model, framework", ("batch, epochs", _batch_and_epochs), *search.RESULTS, "n"),
        ),
        *listing(
            "Candidates of searches",
            "Each candidate of a learning-rate search: the latest accuracy of each seed on the validation split, and "
            "in brackets the epochs trained until then. Searches that are not finished are listed, too.",
            search.candidates_of_all_seeds(results),
            *("machine", "model", "global batch", "lr", "with", ("accuracy (epochs) of each seed", "accuracies")),
        ),
        *listing(
            "Searches against the full grid",
            "For searches whose full grid was trained to the end, too, with the same seeds on the same validation "
            "split. Learning rates: medians over n seeds. Factor: the largest ratio between the rate that a search "
            "found and the grid's best. Accuracy loss: accuracy of the grid's best minus that of the rate that was "
            "found, median and largest. Loss by the other seeds: that of the rate with the best mean accuracy in the "
            "full grids of the other seeds; it shows how far chance alone moves the best rate. Epochs: of all seeds "
            "together.",
            search.against_grid(results),
            *("machine", "model", "global batch"),
            ("lr found (grid's best)", lambda row: f"{row.lr:.3g} ({row.best_lr:.3g})"),
            ("factor (seeds within 2)", lambda row: f"{row.factor:.2f} ({row.near} of {row.n})"),
            ("accuracy loss (largest)", lambda row: f"{row.loss:.3f} ({row.most_loss:.3f})"),
            (
                "loss by the other seeds (largest)",
                lambda row: f"{row.other_loss:.3f} ({row.most_other_loss:.3f})" if row.n > 1 else "",
            ),
            ("epochs (full grid)", lambda row: f"{row.spent:,.0f} ({row.grid:,.0f}), {row.spent / row.grid:.0%}"),
        ),
        *_noise_scales(results),
    ]


def _noise_scales(results: Results) -> list[Block]:
    runs = results.runs[(results.runs.length == TRAINING) & (results.runs.outcome == COMPLETED) & ~results.runs.quick]
    runs = runs[runs.noise_scale.notna()].fillna({"noise_high": math.inf})
    of_setting, names = runs.groupby("setting"), ["noise_scale", "noise_low", "noise_high"]
    scales = runs.drop_duplicates("setting").set_index("setting").assign(n=of_setting.size())
    scales[names] = of_setting[names].median()
    noise_scale = (
        "Gradient noise scale (McCandlish et al. 2018) of the second half of a training, in samples: medians of n "
        "runs. At batches well below it, doubling the batch nearly halves the number of steps; above it, doubling "
        "saves less and less."
    )
    return listing(
        "Gradient noise scale",
        noise_scale,
        scales.sort_values(["model", "global_batch"], kind="stable"),
        *("machine", "model", "global batch", "training recipe", "lr"),
        *(("noise scale", "noise_scale"), ("90% interval", _noise_interval), "n"),
    )


def _batch_and_epochs(row: Any) -> str:
    return ", ".join(filter(None, [f"{row.global_batch:,.0f}", f"{row.epochs:.0f} epochs", getattr(row, "with")]))


def _noise_interval(row: Any) -> str:
    high = markdown.number(row.noise_high) if math.isfinite(row.noise_high) else "no bound"
    return f"{markdown.number(row.noise_low)} to {high}"


def _epochs(row: Any) -> str:
    until = f", until {row.target_accuracy:g}" if pd.notna(row.target_accuracy) else ""
    return markdown.count(row.epochs) + until


def scaling_and_kvstores(results: Results) -> list[Block]:
    """Return every series of weak scaling, also those that synchronise nothing, and the step-time breakdowns."""
    rows = results.timed
    rows = rows[rows.accuracy_on != "validation split"]
    cpu_contexts = (rows.kind == "cpu") & (rows.workers < rows.devices)  # they share their threads
    lines = []
    for _, same in rows[(rows.straggler == 0) & ~cpu_contexts].groupby([*repeats.SERIES], sort=False):
        for kvstore in same.kvstore[same.devices > 1].unique():
            for curve in scaling.series(results, same[(same.devices == 1) | (same.kvstore == kvstore)]):
                (line,) = markdown.lines(curve.tail(1), "machine", "model, framework", "kvstore", "batch per device")
                recipe = "" if curve.baseline.all() else f", {curve.training_recipe.iloc[0]}"
                line["model, framework"] += scaling.remarks(curve) + recipe
                line["devices"] = " → ".join(map(markdown.count, curve.devices))
                line["samples/s"] = " → ".join(map(markdown.number, curve.samples_per_second))
                lines.append({**line, **scaling.efficiency(curve)})
    about = (
        "Each kvstore at a fixed batch per device; with none gradients are not synchronised, an upper bound. The "
        "efficiency is that of the most devices, from medians of interleaved repeats ([method](method.md))."
    )
    runs = results.runs[results.runs.step_seconds.notna() & results.runs.sync_seconds.notna() & ~results.runs.quick]
    parts = ["step_seconds", "compute_seconds", "sync_seconds", "issue_seconds"]
    runs = runs.assign(**{part: runs.groupby("setting")[part].transform("median") for part in parts})
    runs = runs[(runs.devices > 1) & ~runs.emulated].drop_duplicates("setting")
    runs = runs.sort_values(["elsewhere", "devices"], kind="stable")
    return [
        *section("Weak scaling by kvstore", about, markdown.table(lines)),
        *listing(
            "Step-time breakdown",
            "Measured after the training: a whole step, its computation alone, its gradient synchronisation alone, "
            "and the time that the host needs to enqueue it. A GPU run is launch-bound if enqueueing takes at least "
            f"{LAUNCH_BOUND_SHARE:.0%} of the step. Medians over repeats.",
            runs,
            *("machine", "model, framework", "devices, kvstore", "batch per device"),
            ("step (ms)", lambda row: markdown.number(row.step_seconds * 1e3)),
            ("compute (ms)", lambda row: markdown.number(row.compute_seconds * 1e3)),
            ("sync (ms)", lambda row: markdown.number(row.sync_seconds * 1e3)),
            ("enqueue (ms)", _enqueue),
        ),
    ]


def _enqueue(row: Any) -> str:
    """Return what the host takes to enqueue a step, and whether GPUs wait for that."""
    bound = is_launch_bound(row.kind, row.issue_seconds, row.step_seconds)
    return markdown.number(row.issue_seconds * 1e3) + (" (launch-bound)" if bound else "")


def models(results: Results) -> list[Block]:
    """Return samples/s of every model, framework, precision and batch size on one device, a CPU with all its cores."""
    rows = results.timed.sort_values(["elsewhere", "model", "batch_per_device"], kind="stable")
    rows = rows[(rows.devices == 1) & rows.cores_per_worker.isna() & ~(rows.fewer_threads > 0)]
    rows = rows[rows.accuracy_on != "validation split"]
    varied = [name for name in ("layout", "input_shape") if rows[name].nunique() > 1]

    def model(row: Any) -> str:
        return ", ".join([markdown.model_and_framework(row), *(getattr(row, name) for name in varied)])

    about = f"FLOP/s: {FLOPS_RULE}. MFU: see [method](method.md)."
    if rows.fixed.any():
        about = f"Fixed batch: one batch that stays in device memory, without input pipeline. {about}"
    return listing(
        "One device",
        about,
        # The learning rate does not matter for speed: the setting with most repeats stands for its batch size.
        rows.drop_duplicates(["workload", "framework", "layout", "length", "kind", "batch_per_device"]),
        *("machine", ("model, framework", model), "training recipe", "batch per device", "length", RATE),
        ("GFLOP/s", lambda row: markdown.number(row.flops / 1e9)),
        ("MFU", lambda row: markdown.formatted(row.mfu, ".0%")),
    )


def studies(results: Results) -> list[Block]:
    """Return the rows of each published study, with this machine's speed of the same setting."""
    timed = results.timed
    timed = timed[(timed.machine == results.machine) & is_synchronous(timed)]
    timed = timed[(timed.straggler == 0) & ((timed.devices > 1) | timed.cores_per_worker.isna())]
    timed = timed[timed.family.isin([*markdown.STUDIED, "synthetic"])]
    timed = timed[timed.global_batch == timed.batch_per_device * timed.devices]  # without accumulation
    return [block for study in results.studies for block in _study(results, study, timed)]


def _study(results: Results, study: Study, timed: pd.DataFrame) -> list[Block]:
    title = study.title or study.name
    facts = [fact for fact in (markdown.link(title, study.address), study.authors, study.year, study.about) if fact]
    facts += [
        f"Contradiction in {row.hardware or row.machine}, {row.printed}: {row.flag}" for row in study.rows if row.flag
    ]
    rows = results.settings[results.settings.study == study.name]
    rows = rows.assign(own=[_own_rate(timed, row) for row in markdown.records(rows)])
    return listing(
        title.split(":")[0],
        "\n".join(f"- {fact}" for fact in facts),
        rows,
        *(("machine", markdown.machine), "model", ("as printed", "printed"), ("batch x devices", _batch)),
        *(("samples/s", "samples_per_second"), ("speed-up", "speedup_throughput")),
        ("speed-up by wall time", "speedup_wall"),
        *("accuracy", ("this machine: samples/s", "own")),
    )


def _batch(row: Any) -> str:
    batch, devices = (markdown.count(value) or "?" for value in (row.batch_per_device, row.devices))
    return f"{batch} x {devices}" if row.devices != 0 else f"{markdown.count(row.global_batch)} on a CPU"


def _own_rate(rows: pd.DataFrame, row: Any) -> str:
    """Return the samples/s in `rows` with a published row's model, images, precision, batch per device and devices.

    An unknown precision is float32. GPUs are preferred for those of the study, then its framework. A fixed batch counts
    where the study did not read images either.
    """
    rows = rows[(rows.model == row.model) & (rows.batch_per_device == row.batch_per_device)]
    rows = rows[rows["dtype"] == (row.dtype or "float32")]
    network = NETWORKS.get(row.model)
    shape = row.input_shape or (network and f"3x{network.input_size}x{network.input_size}")
    rows = rows[rows.input_shape == shape] if shape else rows
    rows = rows[~rows.fixed | (not row.dataset.startswith("cifar"))]
    rows = rows[(rows.kind == "cpu") & (rows.devices == 1) if row.devices == 0 else rows.devices == row.devices]
    same_framework = rows.framework.str.startswith(row.framework.partition(" ")[0])
    for is_like in (rows.kind == ("gpu" if row.devices else "cpu"), same_framework):
        rows = repeats.some_or_all(rows, is_like[rows.index])
    same = preferred(rows)
    return "" if same is None else f"{markdown.rate(same)}, {same.framework}, {markdown.devices(same)}"


def method(results: Results) -> list[Block]:
    """Return the rules of measurement, the prices that costs are computed with, and the runs that failed."""
    prices = results.table[results.table.dollars_per_hour.notna()]
    runs = results.runs
    return [
        _RULES,
        *listing(
            "Prices",
            "Sources: `poc/published/prices.csv`. `--price NAME=DOLLARS` sets the price of a machine.",
            prices.assign(name=[*map(markdown.machine, markdown.records(prices))]).drop_duplicates(
                ["name", "dollars_per_hour", "price_source"]
            ),
            *(("machine", markdown.machine), ("instance $/h", lambda row: markdown.dollars(row.dollars_per_hour))),
            ("price of", "price_source"),
        ),
        *listing(
            "Failed runs",
            "",
            runs[~runs.outcome.isin([COMPLETED, SKIPPED])],
            *("machine", "model", "devices", "batch per device", "lr", ("day", lambda row: row.started[:10])),
            *("outcome", ("reason", lambda row: markdown.escape(row.reason))),
        ),
    ]
