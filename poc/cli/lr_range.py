"""`poc lr-range`: the learning-rate range test, and the rates that are worth trying.

The learning rate grows by the same factor every step while the training loss is recorded against it (Smith 2017,
"Cyclical Learning Rates for Training Neural Networks", section 3.3).
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from tabulate import tabulate

from poc.cli.options import Options, recipe_path
from poc.cli.run import exit_code
from poc.config import LARGEST, Exponential, Recipe
from poc.config.rates import steps_per_epoch
from poc.config.run import Run
from poc.host import hardware
from poc.host.hardware import Hardware
from poc.plan import Planned, check_gpus, plan
from poc.records import journal
from poc.records.record import DONE, Record
from poc.run.loop import EXPLODED
from poc.run.progress import label, varied
from poc.run.sweep import Sweep, run_sweep
from poc.values import UserError, invalid, value, write_atomically

_WINDOWS = 100
_MIN_STEPS = 100
_HALF_LIFE = 0.1  # decades of the learning rate over which the weight of a loss in the smoothed curve halves
_SPAN = 2.0  # factor of the learning rate over which a slope is measured
_NOISE = 0.05  # share of the first loss by which a loss is below it if the curve fell, and above it if it exploded
_BELOW, _ABOVE = 25.0, 2.0  # the interval is from the rate with the smallest loss / _BELOW to that rate x _ABOVE


@value
class RangeTest:
    """The loss curve of one range test, and the learning rates that follow from it; None if there is no such rate."""

    losses: dict[float, float]  # smoothed training loss by learning rate
    steepest: float | None = None  # learning rate at which the loss falls fastest
    minimum: float | None = None  # learning rate with the smallest loss
    explodes: float | None = None  # first rate after the minimum at which the loss is above its start, or not finite
    interval: tuple[float, float] | None = None  # lowest and highest learning rate that are worth trying


def lr_range(options: Options) -> int:
    """Do the range tests of a recipe; print the intervals and draw the curves. Return 1 if a test failed."""
    path, machine = recipe_path(options.recipe), hardware.detect()
    if options.low >= options.high:
        raise invalid("--low", options.low, f"use less than --high={options.high:g}")
    rate = Exponential(low=options.low, high=options.high)
    recipe = options.load_recipe(path)
    check_gpus([recipe], machine, "--set kind=cpu")
    planned = plan_tests(path.stem, recipe, machine, rate)
    if all(item.skip for item in planned):
        raise UserError(f"{path.name}: {planned[0].skip}")
    sweep = Sweep(planned, options.results, options.context(machine))
    price = options.known_price(machine)
    failed = run_sweep(sweep, price=price.dollars_per_hour if price else None)
    runs = [item.run for item in planned if not item.skip]
    details = varied(runs)
    names_data = len({run.data.key for run in runs}) > 1  # data sets may differ in their paths alone
    tests = {
        label(record.run, details) + (f", {record.run.data.key}" if names_data else ""): range_test(record)
        for record in _records(sweep, runs)
    }
    if tests:
        figure = sweep.path.with_name(f"lr_range_{path.stem}.svg")
        write_atomically(figure, _figure(tests))
        print(f"{_table(tests)}\n\nWritten: {figure}")
    elif not failed:
        raise UserError("lr-range: no test fits in memory; use a smaller batch_per_device")
    return exit_code(failed)


def plan_tests(name: str, recipe: Recipe, machine: Hardware, rate: Exponential) -> list[Planned]:
    """Return a range test for each model, data set, optimizer and global batch of a recipe.

    It lasts an epoch, and at least 100 steps. Of settings that differ only in other fields the first that this machine
    can run is planned. Raises UserError if a batch is to be searched for.
    """
    cases = []
    for setting in recipe.settings():
        if setting.batch_per_device == LARGEST:  # type: ignore[comparison-overlap]
            raise UserError("lr-range: batch_per_device='largest' is not allowed; use a number")
        steps = max(_MIN_STEPS, steps_per_epoch(setting.data.train_images, setting.global_batch))
        fields = {**vars(setting), "lr": rate, "epochs": None, "steps": steps, "window": steps // _WINDOWS}
        fields.update(seeds=setting.seeds[:1], repeats=1, evaluate=False, seconds=None, target_accuracy=None)
        cases.append({**fields, "gradient_noise": None})
    chosen: dict[str, Planned] = {}
    for planned in plan(name, Recipe(cases=cases, folder=recipe.folder), machine):
        run = planned.run
        key = repr((run.model, run.data, run.optimizer, run.global_batch))
        if key not in chosen or (chosen[key].skip and not planned.skip):
            chosen[key] = planned
    return list(chosen.values())


def _records(sweep: Sweep, runs: Sequence[Run]) -> Iterator[Record]:
    """Return the last record of each run that came to its end, on the images of the sweep if there is one."""
    completed = [record for record in journal.read([sweep.path]) if record.outcome in DONE]
    for run in runs:
        records = [record for record in completed if record.run.id == run.id]
        images = sweep.context.images_of(run)
        yield from sorted(records, key=lambda record: record.data_id == images)[-1:]


def range_test(record: Record) -> RangeTest:
    """Evaluate the windows of a range test (`find_rates`)."""
    run, step = record.run, 0
    losses: dict[float, float] = {}
    for window in record.windows:
        rate = math.sqrt(run.rate(step) * run.rate(step + window.steps - 1))  # the middle: rates grow geometrically
        losses[rate] = math.inf if window.loss is None or window.loss >= EXPLODED else window.loss
        step += window.steps
    return find_rates(losses)


def find_rates(losses: Mapping[float, float]) -> RangeTest:
    """Return the smoothed curve of losses by ascending learning rate, and the rates that follow from it.

    The interval is from a 25th of the rate with the smallest loss to twice that rate, or to where the loss explodes if
    that comes first. The smallest loss is near the highest stable rate: one trains below it, fastai's learning-rate
    finder at a tenth. LeNet on CIFAR-10, 2 epochs, four rates a factor of two apart, was best with 0.02 at batch 128
    (interval 0.0021 to 0.10) and with 0.08 at batch 2,048 (0.0048 to 0.24).
    """
    curve = _smoothed(losses)
    rates = list(curve)
    if not rates:
        return RangeTest(losses=curve, explodes=next(iter(losses), None))
    minimum = min(rates, key=curve.__getitem__)
    first, margin = curve[rates[0]], _NOISE * abs(curve[rates[0]])
    after = [rate for rate in losses if rate > minimum]
    explodes = next((rate for rate in after if not curve.get(rate, math.inf) <= first + margin), None)
    if curve[minimum] >= first - margin:
        return RangeTest(losses=curve, explodes=explodes)
    falling = rates[: rates.index(minimum) + 1]
    spans = ((rate, next((later for later in falling if later >= _SPAN * rate), None)) for rate in falling)
    slopes = {math.sqrt(a * b): (curve[b] - curve[a]) / math.log(b / a) for a, b in spans if b}
    steepest = min(slopes, key=slopes.__getitem__, default=None)
    interval = (minimum / _BELOW, min(_ABOVE * minimum, explodes or math.inf))
    return RangeTest(losses=curve, steepest=steepest, minimum=minimum, explodes=explodes, interval=interval)


def _smoothed(losses: Mapping[float, float]) -> dict[float, float]:
    """Return the bias-corrected exponential moving average over log rate, up to the first loss that is not finite."""
    curve: dict[float, float] = {}
    total = weight = previous = 0.0
    for rate, loss in losses.items():
        if not math.isfinite(loss):
            break
        decay = 0.5 ** (math.log10(rate / previous) / _HALF_LIFE) if previous else 0.0
        total, weight, previous = decay * total + loss, decay * weight + 1, rate
        curve[rate] = total / weight
    return curve


def _table(tests: Mapping[str, RangeTest]) -> str:
    rows = []
    for setting, test in tests.items():
        rates = [f"{rate:.2g}" if rate else "never" for rate in (test.steepest, test.minimum, test.explodes)]
        interval = "none: the loss does not fall"
        if test.interval:
            interval = "Search(low={:.2g}, high={:.2g})".format(*test.interval)
        rows.append([setting, *rates, interval])
    headers = ["setting", "steepest fall", "minimum", "explodes at", "suggested interval"]
    return tabulate(rows, headers=headers, disable_numparse=True)


def _figure(tests: Mapping[str, RangeTest]) -> str:
    """Return the SVG of the smoothed losses against the learning rate, with the suggested intervals."""
    from poc.report import chart  # it takes a second to import

    curves = [chart.Line(name, test.losses, measured=True, interval=test.interval) for name, test in tests.items()]
    shown = f"; the first {chart.MAX_LINES} of {len(curves)}" if len(curves) > chart.MAX_LINES else ""
    losses = [loss for test in tests.values() for loss in test.losses.values()]
    first = max(next(iter(test.losses.values()), 0.0) for test in tests.values())
    drawn = chart.lines(
        curves,
        *(f"Training loss by learning rate; bars: suggested rates{shown}", "learning rate", "training loss"),
        xscale="log",
        ylim=(0.8 * min(losses, default=0.0), 1.2 * first or None),  # without the explosion
    )
    return chart.svg(drawn)
