"""Every framework keeps what `Framework` promises and takes the same steps; an unknown option is refused.

Each check is there once, for every framework that is installed and every way to train that it has.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, SGD, Device, DistSync, Fixed, Muon, Synthetic, data, frameworks
from poc.config.kvstores import KVStore
from poc.config.networks import MEAN
from poc.config.run import Run
from poc.frameworks import Session
from poc.host.hardware import GPU
from poc.values import UserError, value
from tests import framework_worker
from tests.builders import MACHINE
from tests.conftest import give_memory_back
from tests.framework_worker import PLAIN, Arrays, batches, distance, gradients, parameters, planned, trained, workers
from tests.launch import HOME, python

INSTALLED = [name for name in frameworks.FRAMEWORKS if frameworks.versions(name)]
REAL = {"kvstore": "device"}, {"kvstore": "local"}
BETWEEN = (
    {"workers": 2, "kvstore": "dist_sync"},
    {"workers": 2, "kvstore": "horovod"},
    # One step: four gradients are added in another order than by one process, which more steps would amplify.
    {"workers": 2, "kvstore": DistSync(servers=2), "devices": 4, "steps": 1},
    {"workers": 2, "kvstore": "dist_device_sync", "devices": 4, "steps": 1},
    {"workers": 2, "kvstore": "horovod", "devices": 4, "steps": 1},
)
APART = (
    {"kvstore": "none"},
    {"kvstore": "none", "optimizer": Muon(lr=0.02)},
    {"kvstore": "none", "workers": 2},
)
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": SGD(momentum_correction=True)},
    {"optimizer": "nesterov"},
    {"optimizer": "lars", "lr": 1.0},
    {"optimizer": Muon(lr=0.02)},
    {"optimizer": Muon(lr=0.02, unit_weights=True)},
)


def words(fields: dict[str, Any]) -> str:
    return ", ".join(f"{name} {given}" for name, given in fields.items()) or "plain"


def having(*ways: dict[str, Any], alone: bool = False, among: Sequence[str] = INSTALLED) -> Callable[[Any], Any]:
    """Each framework with each of the ways to train that it has; `alone`, where that takes one process."""
    cases = {}
    for framework in among:
        for fields in ways:
            case = planned(framework, **fields)
            if not case.skip and not (alone and case.run.workers > 1):
                cases.setdefault(case.run.id, pytest.param(case.run, id=f"{framework}, {words(fields)}"))
    return lambda test: pytest.mark.slow(pytest.mark.parametrize("run", cases.values())(test))


@functools.cache
def here(run: Run) -> Arrays:
    """What this process gives; the same object, where it is asked for again."""
    return trained(frameworks.open_session(run), run)


@pytest.fixture(autouse=True, scope="module")
def what_was_trained_here_is_forgotten() -> Iterator[None]:
    yield
    here.cache_clear()
    give_memory_back()


def started(seen: Arrays) -> Arrays:
    """The parameters before the first step."""
    return {name[6:]: array for name, array in seen.items() if name.startswith("start/")}


def played(run: Run) -> Arrays:
    """What one process that plays the devices of `run` in turn gives."""
    return here(dataclasses.replace(run, emulated=True, workers=1, cores_per_worker=None, kvstore=Device()))


def test_engines_are_found_and_have_names_of_their_own_and_one_that_is_not_there_is_refused() -> None:
    assert {"mxnet", "pytorch", "reference"} <= set(frameworks.FRAMEWORKS)
    assert {"mxnet", "reference"} <= set(INSTALLED)
    assert len({frameworks.load(name).LABEL for name in frameworks.FRAMEWORKS}) == len(frameworks.FRAMEWORKS)
    with pytest.raises(UserError, match="did you mean 'mxnet'"):
        frameworks.load("mxnett")
    with pytest.raises(UserError, match="did you mean 'mxnet'"):
        frameworks.wanted(MACHINE, ["mxnett"])


@pytest.mark.parametrize("inside", [True, False], ids=["named", "not named"])
def test_an_engine_of_ones_own_is_a_folder_that_poc_engines_names(inside: bool, tmp_path: Path) -> None:
    (tmp_path / "my_own").mkdir()
    (tmp_path / "my_own" / "__init__.py").write_text('LABEL = "Mine"')
    script = "from poc import frameworks; print(frameworks.load('my_own').LABEL, frameworks.load('mxnet').LABEL)"
    folders = os.pathsep.join([str(HOME / "tests" / "frameworks"), str(tmp_path) if inside else ""])
    done = python(script, POC_FRAMEWORKS=folders)
    assert done.stdout == ("Mine MXNet\n" if inside else "")
    assert inside or "framework: 'my_own' is not allowed; valid: mxnet, pytorch, reference" in done.stderr


@pytest.mark.slow
def test_only_a_session_imports_a_framework() -> None:
    script = (
        "import sys, poc.__main__, poc.data, poc.report, poc.run.parent, poc.run.worker, poc.frameworks\n"
        "names = [frameworks.load(name).LABEL for name in frameworks.FRAMEWORKS]\n"
        "sys.exit(f'{names} {frameworks}' if (frameworks := {'mxnet', 'torch'} & set(sys.modules)) else 0)"
    )
    done = python(script)
    assert done.returncode == 0, done.stderr


@value
class Unheard(SGD):
    """An optimizer of tomorrow."""

    name = "unheard"


@value
class Telepathy(KVStore):
    """A kvstore of tomorrow."""

    name = "telepathy"
    inside = True


@pytest.mark.parametrize("framework", INSTALLED)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"optimizer": Unheard()}, "optimizer=unheard is not "),
        ({"kvstore": Telepathy(), "devices": 2}, "kvstore=telepathy is not "),
        ({"dtype": "float8"}, "dtype=float8 is not "),
        ({"model": "tomorrow"}, "model=tomorrow is not"),
    ],
    ids=["optimizer", "kvstore", "precision", "network"],
)
def test_what_an_engine_never_heard_of_is_refused_and_not_trained_as_something_else(
    framework: str, fields: dict[str, Any], said: str
) -> None:
    run = dataclasses.replace(planned(framework, devices=fields.get("devices", 1)).run, **fields)
    reason = frameworks.unsupported_reason(run, MACHINE)
    assert re.match(said, reason)
    assert "\n" not in reason
    with pytest.raises(UserError, match=next(iter(fields))):
        frameworks.open_session(run)


@pytest.mark.parametrize(
    ("framework", "fields", "said"),
    [
        ("reference", {"model": "cifar_resnet8_v2"}, "model=cifar_resnet8_v2 is not supported by NumPy"),
        ("reference", {"optimizer": "nesterov"}, "optimizer=nesterov is not supported by NumPy; it has sgd"),
        ("reference", {"optimizer": SGD(momentum_correction=True)}, "momentum correction is not NumPy's"),
        ("reference", {"dtype": "bfloat16"}, "dtype=bfloat16 is not supported by NumPy; it has float32"),
        ("reference", {"devices": 2, "kvstore": "local"}, "kvstore=local is not supported by NumPy; it has device"),
        ("reference", {"devices": 2, "kvstore": Device(two_bit=0.5)}, "compressed gradients are not NumPy's"),
        ("reference", {"label_smoothing": 0.1}, "label_smoothing=0.1 is not"),
        ("reference", {"layout": "NHWC"}, "layout=NHWC is not supported by NumPy"),
        ("pytorch", {"devices": 2, "workers": 2, "kvstore": "dist_sync"}, "kvstore=dist_sync is not"),
        ("pytorch", {"optimizer": "lars"}, "optimizer=lars is not supported by PyTorch; it has sgd, nesterov, muon"),
        ("pytorch", {"dtype": "tf32"}, "dtype=tf32 needs a GPU"),
        ("pytorch", {"model": "cifar_vgg16"}, "model=cifar_vgg16 is not supported by PyTorch"),
        ("pytorch", {"devices": 2, "target_accuracy": 0.5}, "target_accuracy=0.5 needs a single process"),
        ("pytorch", {"devices": 2, "seconds": 5.0}, "seconds=5 needs a single process"),
        ("mxnet", {"devices": 2, "straggler": 0.3}, "straggler=0.3 needs"),
        ("mxnet", {"devices": 2, "kvstore": Device(two_bit=0.5), "dtype": "float16"}, "two_bit is not"),
    ],
    ids=str,
)
def test_what_an_engine_lacks_is_refused_by_its_name(
    framework: str, fields: dict[str, Any], said: str, pytorch_planned: None
) -> None:
    skip = planned(framework, **fields).skip
    assert skip.startswith(said)
    assert "\n" not in skip


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize(
    ("framework", "dtype", "oldest", "capability"),
    [
        ("mxnet", "float16", (5, 3), (5, 2)),
        ("mxnet", "float16", (6, 0), (6, 1)),
        ("mxnet", "tf32", (8, 0), (7, 5)),
        ("pytorch", "float16", (7, 0), (6, 1)),
        ("pytorch", "bfloat16", (8, 0), (7, 0)),
        ("pytorch", "tf32", (8, 0), (7, 5)),
    ],
)
def test_a_precision_that_a_card_only_emulates_is_refused(
    framework: str, dtype: str, oldest: tuple[int, int], capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        frameworks, "usable", lambda name, machine: [gpu for gpu in machine.gpus if gpu.name != "unused"]
    )
    run = dataclasses.replace(planned("mxnet").run, kind="gpu", framework=framework, dtype=dtype)

    def said(*cards: tuple[str, tuple[int, int]]) -> str | None:
        gpus = tuple(GPU(index=0, name=name, capability=has, memory_bytes=2**34) for name, has in cards)
        return frameworks.unsupported_reason(run, dataclasses.replace(MACHINE, gpus=gpus))

    assert said(("new", oldest), ("unused", capability)) is None
    reason = said(("new", oldest), ("old", capability)) or ""
    assert reason.startswith(f"dtype={dtype} ")
    assert f"old (compute capability {capability[0]}.{capability[1]})" in reason


@having(*({"batch_per_device": 64, "steps": 12, "lr": 0.02, **fields} for fields in OPTIMIZERS), alone=True)
def test_steps_lower_the_loss_and_the_seed_settles_all_that_is_drawn(run: Run) -> None:
    first, again = here(run), trained(frameworks.open_session(run), run)
    assert first["losses"][1] < first["losses"][0]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    still = [
        name for name in parameters(frameworks.open_session(run)) if np.array_equal(first[name], first["start/" + name])
    ]
    # Fixed at 1 in the study's input batch norm.
    assert still in ([], ["parameter/features.0.gamma/0"], ["parameter/input_norm.weight"])
    other = trained(frameworks.open_session(dataclasses.replace(run, seed=1)), dataclasses.replace(run, steps=0))
    assert distance(other, started(first)) > 0.1


@having(*({"devices": 2, **fields} for fields in (*REAL, *BETWEEN, *APART)))
def test_devices_train_as_one_that_plays_them_all_or_each_for_itself(run: Run, tmp_path: Path) -> None:
    """Parameters and statistics, and an evaluation of each image once: 70 of them, the last 6 a short batch."""
    independent = run.kvstore.name == "none"
    alone = played(run)
    if run.workers == 1:
        seen = [here(run)]
    else:
        # They draw different weights, and start from those of one of them.
        seen = workers(run, tmp_path, seeds=(1, 2) if independent else ())
        assert distance(*map(started, seen)) == 0
    correct, samples, _ = np.sum([worker["evaluated"] for worker in seen], axis=0)
    assert samples == alone["evaluated"][1] == 70
    if independent:
        assert min(distance(worker, alone) for worker in seen) > 1e-3
        assert len(seen) == 1 or distance(*seen) > 1e-3
        assert {str(worker["sums right"]) for worker in seen} == {"None"}
        return
    assert {str(worker["sums right"]) for worker in seen} == {"True"}
    assert all(distance(worker, seen[0]) < 1e-6 for worker in seen)
    assert distance(seen[0], alone) < 1e-5
    assert correct == alone["evaluated"][0]
    loss = np.sum([worker["evaluated"][2] * worker["evaluated"][1] for worker in seen]) / samples
    assert loss == pytest.approx(alone["evaluated"][2], rel=1e-4)
    assert np.mean([worker["losses"] for worker in seen], axis=0) == pytest.approx(alone["losses"], rel=1e-4)


@having(*({"devices": 2, "steps": 3, **fields} for fields in OPTIMIZERS[1:]), alone=True)
def test_every_optimizer_trains_two_devices_as_one_that_plays_them(run: Run) -> None:
    assert distance(here(run), played(run)) < 1e-5


@having(
    *OPTIMIZERS,
    {"devices": 2},
    {"devices": 2, "emulated": True},
    # It has dropout.
    {"model": "cifar_vgg16", "batch_per_device": 2},
    alone=True,
)
def test_a_session_goes_on_to_the_same_bits_from_the_state_of_another(run: Run) -> None:
    rates = (0.05, 0.02, 0.04, 0.01)

    def go_on(session: Session, first: int, steps: int) -> Arrays:
        for step, batch in enumerate(batches(run, first_step=first, steps=steps), start=first):
            session.step(batch, rates[step])
        return {name: array.copy() for name, array in session.state().items()}

    session = frameworks.open_session(run)
    cut, end = go_on(session, 0, 2), go_on(session, 2, 2)
    del session
    give_memory_back()
    resumed = frameworks.open_session(run, first_step=2, state=cut)
    assert all(np.array_equal(array, cut[name]) for name, array in resumed.state().items())
    after = go_on(resumed, 2, 2)
    assert after.keys() == end.keys()
    assert all(np.array_equal(after[name], end[name]) for name in end)
    assert distance(end, cut) > 1e-3


@having({})
def test_the_loss_of_a_window_is_the_mean_over_its_samples_each_batch_fetched_once_and_a_peak(run: Run) -> None:
    session = frameworks.open_session(run)
    # A core of today does 1e9 to 1e12 multiply-adds a second; on a loaded machine less.
    assert 1e8 < session.peak_flops() < MACHINE.cores * 1e13
    batch, other = batches(run, steps=2)
    losses = []
    for fed in ([batch], [other], [batch, other, batch]):
        for each in fed:
            session.step(each, 0.0)
        losses.append(session.drain())
    assert losses[2] == pytest.approx((2 * losses[0] + losses[1]) / 3, rel=1e-5)
    assert np.isnan(session.drain())
    # A batch's images are on the device already: writing to them, where that is allowed, changes nothing.
    with contextlib.suppress(ValueError):
        batch.images[:] = 0
    session.step(batch, 0.0)
    assert session.drain() == losses[0]


@having({}, {"devices": 2}, alone=True)
def test_no_more_than_three_batches_of_an_evaluation_are_on_the_devices(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = frameworks.open_session(run)
    put, fetch = session._on_devices, session._fetched
    parts, batches_there = 1, [0.0]

    def noted_put(batch: data.Batch) -> Any:
        nonlocal parts
        there = put(batch)
        parts = len(there)
        batches_there.append(batches_there[-1] + 1)
        return there

    def noted_fetch(scalar: Any) -> float:
        batches_there.append(batches_there[-1] - 1 / (2 * parts))
        return fetch(scalar)

    monkeypatch.setattr(session, "_on_devices", noted_put)
    monkeypatch.setattr(session, "_fetched", noted_fetch)
    assert session.evaluate(framework_worker.validation(run, 10)).samples == 70
    assert (max(batches_there), batches_there[-1]) == (3, 0)


@having({})
def test_an_evaluation_is_of_whole_batches_of_which_what_fills_the_last_does_not_count(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = frameworks.open_session(run)
    scores, sizes = session._scores, []

    def noted(images: Any) -> Any:
        sizes.append(len(images))
        return scores(images)

    monkeypatch.setattr(session, "_scores", noted)
    seen = [session.evaluate(framework_worker.validation(run, batch)) for batch in (32, 35, 70)]
    assert sizes == [32] * 3 + [35] * 2 + [70]
    assert {(each.correct, each.samples) for each in seen} == {(seen[0].correct, 70)}
    assert [each.loss for each in seen] == pytest.approx([seen[0].loss] * 3, rel=1e-6)


@having({}, {"devices": 2}, alone=True)
def test_batches_that_a_thread_puts_on_the_devices_ahead_train_to_the_same_bits(run: Run) -> None:
    session = frameworks.open_session(run)
    put: list[str] = []
    ahead_of_steps = session._ahead

    def noted(batch: data.Batch) -> Any:
        put.append(threading.current_thread().name)
        return ahead_of_steps(batch)

    session._ahead = noted  # type: ignore[method-assign]
    with data.prefetch(map(session.placed, batches(run)), depth=2) as ahead:
        for step, batch in enumerate(ahead):
            assert session.placed(batch) is batch
            session.step(batch, run.rate(step))
        session.drain()
    assert len(put) == run.steps
    assert all(name.startswith("prefetch") for name in put)
    seen, expected = parameters(session), here(run)  # which averages the devices' statistics at its end
    assert all(np.array_equal(array, expected[name]) for name, array in seen.items() if "running" not in name)


@having({"devices": 4}, {"devices": 4, "emulated": True}, alone=True)
def test_norms_are_those_of_one_device_s_gradient_and_of_the_mean(run: Run) -> None:
    run = dataclasses.replace(run, optimizer=PLAIN)

    def square(arrays: Arrays) -> float:
        return sum(float(np.square(array).sum(dtype=np.float64)) for array in arrays.values())

    session = frameworks.open_session(run)
    of_mean = square(gradients(session, run, norms=True))
    session.drain()
    ((small, large),) = session.gradient_norms()
    assert session.gradient_norms() == []
    assert large == pytest.approx(of_mean, rel=1e-3)
    single = dataclasses.replace(planned(run.framework).run, optimizer=PLAIN)
    shared = dataclasses.replace(run, workers=4)
    squares = [square(gradients(frameworks.open_session(single), shared, device)) for device in range(4)]
    assert small == pytest.approx(np.mean(squares), rel=1e-3)
    assert large < small


@having({"batch_per_device": 32})
def test_views_cut_on_the_device_are_those_cut_on_the_host(run: Run) -> None:
    generator = np.random.default_rng(0)
    split = data.Images(generator.integers(0, 256, (64, 32, 32, 3), np.uint8), (np.arange(64) % 10).astype(np.int32))
    dataset = data.Dataset("cifar10", split, split)
    crop = 32 if run.model == "cifar_mlp" else 28
    losses = []
    for on_device in (False, True):
        spec = CIFAR10(crop=crop, pad=4, jitter=False, on_device=on_device)
        session = frameworks.open_session(dataclasses.replace(run, data=spec))
        if on_device:
            session.hold(data.device_images(dataset, spec))
        for batch in data.training_batches(dataset, spec, global_batch=32, seed=0, steps=3):
            assert isinstance(batch.images, data.Crops) == on_device
            session.step(batch, 0.001)
            losses.append(session.drain())
    np.testing.assert_allclose(losses[:3], losses[3:], rtol=1e-5)


@having({"model": "cifar_airbench94_slim"})
def test_patches_of_the_images_that_a_network_is_given_are_white_behind_its_first_convolution(run: Run) -> None:
    images = np.concatenate([batch.images for batch in batches(run)])
    session = frameworks.open_session(run)
    session.whiten(images)
    (filters,) = (array for name, array in parameters(session).items() if "whitening.weight" in name)
    np.testing.assert_array_equal(filters[12:], -filters[:12])
    pixels = (images - np.reshape(MEAN, (1, 3, 1, 1))) / 58
    patches = np.lib.stride_tricks.sliding_window_view(pixels, (2, 2), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    white = patches.reshape(-1, 12) @ filters[:12].reshape(12, 12).T
    moments = white.T @ white / len(white)
    assert np.abs(moments - np.diag(np.diag(moments))).max() < 1e-3


@pytest.mark.parametrize(
    ("exchange", "bits"), [(Device(), 32), (DistSync(gradient_bits=16), 16), (DistSync(two_bit=0.5), 2)], ids=str
)
def test_gradients_count_as_they_travel(exchange: KVStore, bits: int) -> None:
    session = frameworks.open_session(planned("reference", devices=2).run)
    session._run = dataclasses.replace(session._run, kvstore=exchange)
    session.parameters = 1600
    assert session.gradient_bytes == 1600 * bits / 8


TEN = {"model": "cifar_resnet8_v2", "lr": 0.01, "batch_per_device": 64, "steps": 10, "layout": "NCHW"}
WARMED_UP = {"warmup_epochs": 0.1, "warmup_from": 0.002}
# At the end of airbench94, images of 16 pixels are one pixel each: too few values for one variance in both frameworks.
SLIM = {"model": "cifar_airbench94_slim", "data": Synthetic(crop=32, train=640, validation=70), "batch_per_device": 128}
STEPS: tuple[dict[str, Any], ...] = (
    {"lr": Fixed(base=0.02, decay="linear", **WARMED_UP)},
    {"lr": Fixed(base=0.02, **WARMED_UP), "optimizer": SGD(momentum_correction=True)},
    {"lr": Fixed(base=0.01, decay="cosine"), "optimizer": "nesterov"},
    # Orthogonalising makes as much of a direction that is nearly rounding as of any other: small steps.
    {"lr": 0.001, "optimizer": Muon(lr=0.001)},
    {"lr": 0.001, "optimizer": Muon(lr=0.001), **SLIM, "steps": 3},
    {"lr": 0.001, "optimizer": Muon(lr=0.001, unit_weights=True)},
    {"label_smoothing": 0.1, "optimizer": SGD(decay_gammas=False, weight_decay=0.01)},
    {"zero_init_gamma": True},
    {"devices": 2, "emulated": True, "gradient_noise": 1},
    {"model": "cifar_resnet20_v2_no_norm", "lr": 1e-4},
    {"model": "cifar_mlp", "devices": 2, "gradient_noise": 1},
)


def in_layer_order(arrays: Arrays, start: str = "") -> list[np.ndarray]:
    """The parameters of the first device; frameworks name them differently."""
    names = [name for name in arrays if name.startswith(start + "parameter/") and not name.endswith("/1")]
    return [arrays[name] for name in names]


@having(*({**TEN, **fields} for fields in STEPS), among=[name for name in INSTALLED if name != "mxnet"])
def test_engines_take_the_same_steps(run: Run) -> None:
    """From the same weights: losses, norms, parameters and statistics after ten steps, and their evaluation.

    PyTorch divides the variance of n values by n - 1 where it keeps it, MXNet by n: here a thousandth of half of it.
    """
    expected = here(dataclasses.replace(run, framework="mxnet"))
    state = frameworks.open_session(run).state()
    weights = iter(in_layer_order(expected, "start/"))
    by_device: dict[str, np.ndarray] = {}
    for name, array in state.items():
        if name.startswith("parameter/") and array.dtype == np.float32:
            layer = name[:-2] if name.endswith(("/0", "/1")) else name
            if layer not in by_device:
                by_device[layer] = next(weights)
            assert by_device[layer].shape == array.shape
            state[name] = by_device[layer]
    assert next(weights, None) is None
    seen = trained(frameworks.open_session(run, state=state), run)
    # Without batch norm losses begin at hundreds of nats.
    rtol = 0 if expected["losses"][0] < 5 else 1e-4
    np.testing.assert_allclose(seen["losses"], expected["losses"], atol=1e-4, rtol=rtol)
    for array, other in zip(in_layer_order(seen), in_layer_order(expected)):
        np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(seen["norms"], expected["norms"], rtol=1e-2)
    np.testing.assert_allclose(seen["evaluated"][1:], expected["evaluated"][1:], rtol=1e-3)


@pytest.mark.parametrize(
    ("framework", "kind", "words", "memory"),
    [
        ("mxnet", "MXNetError", "Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading: out of memory", True),
        ("mxnet", "MXNetError", "cudaMalloc retry failed: out of memory", True),
        ("mxnet", "MXNetError", "Failed to allocate CPU Memory", True),  # as seen
        ("mxnet", "MXNetError", "Failed to find any forward convolution algorithm.  with workspace size of 10", True),
        ("mxnet", "MXNetError", "Check failed: e == CUDNN_STATUS_SUCCESS (4 vs. 0) : cuDNN: INTERNAL_ERROR", False),
        ("mxnet", "ValueError", "the file is out of memory of anybody", False),
        ("pytorch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of", True),
        ("pytorch", "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes", True),
        ("pytorch", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("pytorch", "RuntimeError", "FIND was unable to find an engine to execute this computation", True),
        ("pytorch", "RuntimeError", "CUDA error: device-side assert triggered", False),
    ],
)
def test_memory_that_ran_out_is_told_from_other_errors(framework: str, kind: str, words: str, memory: bool) -> None:
    error = type(kind, (ValueError if kind == "ValueError" else RuntimeError,), {})(words)
    assert frameworks.load(framework).is_out_of_memory(error) == memory
    assert frameworks.load(framework).is_out_of_memory(MemoryError())
