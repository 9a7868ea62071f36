"""Every framework keeps the promises of `Framework` and takes the same steps; unsupported options are refused.

Each check runs for every installed framework and every way to train that it supports.
"""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poc import CIFAR10, SGD, AdamW, Device, DistDeviceSync, DistSync, Fixed, Muon, Synthetic, data, frameworks
from poc.config.networks import MEAN
from poc.config.run import Run
from poc.frameworks import Session
from poc.host.hardware import GPU
from poc.values import UserError, one_line
from tests import framework_worker
from tests.builders import MACHINE
from tests.conftest import give_memory_back
from tests.framework_worker import (
    PLAIN,
    Arrays,
    batches,
    counted,
    distance,
    gradients,
    parameters,
    planned,
    trained,
    workers,
)
from tests.launch import HOME, python

INSTALLED = [name for name in frameworks.FRAMEWORKS if frameworks.versions(name)]
IN_PROCESS = {"kvstore": "device"}, {"kvstore": "local"}
ACCUMULATING = {"accumulate": 3, "steps": 2}
BETWEEN_WORKERS = (
    {"workers": 2, "kvstore": "dist_sync", **ACCUMULATING},
    # One step: four gradients are added in another order than by one process, which more steps would amplify.
    {"workers": 2, "kvstore": DistDeviceSync(servers=2), "devices": 4, "steps": 1},
    {"workers": 2, "kvstore": "horovod", "devices": 4, "steps": 1},
)
WITHOUT_SYNC = ({"kvstore": "none"}, {"kvstore": "none", "workers": 2})
# More steps would amplify the rounding of sums in another order.
MICRO_BATCHES = {"accumulate": 4, "model": "cifar_resnet20_v2_no_norm", "lr": 1e-5, "steps": 2}
TWO_SHARES = {"devices": 2, "batch_per_device": 16, **MICRO_BATCHES}
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": SGD(momentum_correction=True)},
    {"optimizer": "nesterov"},
    {"optimizer": "lars", "lr": 1.0},
    {"optimizer": Muon(lr=0.02)},
    {"optimizer": Muon(lr=0.02, unit_weights=True)},
    # The step of a gradient near zero does not depend on its size, so epsilon is large here.
    {"optimizer": AdamW(epsilon=1e-3), "lr": 0.001},
)


def on_each(*variants: dict[str, Any], one_process: bool = False, among: Sequence[str] = INSTALLED) -> Any:
    """Parametrise a test by the runs of each framework with each of the variants that it supports."""
    cases = {}
    for framework in among:
        for fields in variants:
            case = planned(framework, **fields)
            if not case.skip and not (one_process and case.run.workers > 1):
                words = ", ".join(f"{name} {field}" for name, field in fields.items()) or "plain"
                cases.setdefault(case.run.id, pytest.param(case.run, id=f"{framework}, {words}"))
    return lambda test: pytest.mark.slow(pytest.mark.parametrize("run", cases.values())(test))


@functools.lru_cache(maxsize=4)
def results(run: Run) -> Arrays:
    """Return the result of training in this process; those of the last four runs are kept."""
    return trained(frameworks.open_session(run), run)


@pytest.fixture(autouse=True, scope="module")
def results_are_dropped() -> Iterator[None]:
    yield
    results.cache_clear()
    give_memory_back()


def start(seen: Arrays) -> Arrays:
    """Return the parameters before the first step."""
    return {name[6:]: array for name, array in seen.items() if name.startswith("start/")}


def emulated(run: Run) -> Arrays:
    """Return the result of one process that emulates the devices of `run`."""
    return results(dataclasses.replace(run, emulated=True, workers=1, cores_per_worker=None, kvstore=Device()))


@pytest.mark.parametrize("fields", [{}, {"devices": 2, "workers": 2, "kvstore": "dist_sync"}], ids=str)
def test_a_run_on_the_cpu_uses_no_gpu(fields: dict[str, Any]) -> None:
    run = planned("mxnet", **fields).run
    with frameworks.load("mxnet").cluster(run, 1) as cluster:
        assert {each["CUDA_VISIBLE_DEVICES"] for each in cluster.environments} == {""}


@pytest.mark.parametrize("framework", ["mxnet", "pytorch"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "tf32"])
def test_products_are_rounded_to_tf32_only_on_request(
    framework: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = dataclasses.replace(planned("mxnet").run, framework=framework, kind="gpu", dtype=dtype)
    with frameworks.load(framework).cluster(run, 1) as cluster:
        assert cluster.environments[0].get("NVIDIA_TF32_OVERRIDE") == (None if dtype == "tf32" else "0")
        assert "CUDA_VISIBLE_DEVICES" not in cluster.environments[0]
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    reason = frameworks.unsupported_reason(run, MACHINE) or ""
    assert ("NVIDIA_TF32_OVERRIDE" in reason) == (dtype == "tf32") or "not installed" in reason


def test_frameworks_are_folders_here_and_in_poc_frameworks(tmp_path: Path) -> None:
    assert {"mxnet", "reference"} <= set(INSTALLED)
    with pytest.raises(UserError, match="mxnet"):
        frameworks.load("mxnett")
    (tmp_path / "my_own").mkdir()
    (tmp_path / "my_own" / "__init__.py").write_text('LABEL = "Mine"')
    script = "from poc import frameworks; print(frameworks.load('my_own').LABEL, frameworks.load('mxnet').LABEL)"
    folders = [str(HOME / "tests" / "frameworks"), str(tmp_path)]
    assert python(script, POC_FRAMEWORKS=os.pathsep.join(folders)).stdout == "Mine MXNet\n"
    assert "my_own" in python(script, POC_FRAMEWORKS=folders[0]).stderr


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize(
    ("framework", "fields", "word"),
    [
        ("reference", {"model": "cifar_resnet8_v2"}, "model"),
        ("reference", {"optimizer": "nesterov"}, "optimizer"),
        ("reference", {"optimizer": SGD(momentum_correction=True)}, "momentum correction"),
        ("reference", {"devices": 2, "kvstore": "local"}, "kvstore"),
        ("reference", {"label_smoothing": 0.1}, "label_smoothing"),
        ("reference", {"layout": "NHWC"}, "layout"),
        ("pytorch", {"optimizer": "lars"}, "optimizer"),
        ("pytorch", {"dtype": "tf32"}, "dtype"),
        ("mxnet", {"graphs": False}, "graphs="),
        ("mxnet", {"devices": 2, "straggler": 0.3}, "straggler"),
        ("mxnet", {"devices": 2, "optimizer": Muon(lr=0.02)}, "optimizer"),
        *(
            ("mxnet", {"devices": 2, "workers": 2, "kvstore": kvstore, "gradient_noise": 2}, "gradient_noise")
            for kvstore in ("dist_async", "none", DistSync(two_bit=0.5))
        ),
        ("mxnet", {"devices": 2, "workers": 2, "kvstore": "dist_async", "optimizer": "adamw"}, "kvstore"),
        *(
            ("mxnet", {"devices": 2, "emulated": True, "kvstore": each}, "kvstore")
            for each in ("none", Device(two_bit=1))
        ),
        ("mxnet", {"model": "cifar_vgg16", "zero_init_gamma": True}, "zero_init_gamma"),
    ],
    ids=str,
)
def test_an_unsupported_option_is_refused_by_its_name(framework: str, fields: dict[str, Any], word: str) -> None:
    skip = planned(framework, **fields).skip
    assert skip.startswith(word)
    assert "\n" not in skip


@pytest.mark.usefixtures("pytorch_planned")
@pytest.mark.parametrize(
    ("framework", "dtype", "oldest", "capability"),
    [
        ("mxnet", "float16", (5, 3), (5, 2)),
        ("mxnet", "tf32", (8, 0), (7, 5)),
        ("pytorch", "float16", (7, 0), (6, 1)),
        ("pytorch", "bfloat16", (8, 0), (7, 0)),
    ],
)
def test_a_precision_that_a_card_only_emulates_is_refused(
    framework: str, dtype: str, oldest: tuple[int, int], capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        frameworks, "usable", lambda name, machine: [gpu for gpu in machine.gpus if gpu.name != "unused"]
    )
    run = dataclasses.replace(planned("mxnet").run, kind="gpu", framework=framework, dtype=dtype)

    def reason(*cards: tuple[str, tuple[int, int]]) -> str | None:
        gpus = tuple(GPU(index=0, name=name, capability=has, memory_bytes=2**34) for name, has in cards)
        return frameworks.unsupported_reason(run, dataclasses.replace(MACHINE, gpus=gpus))

    assert reason(("new", oldest), ("unused", capability)) is None
    assert reason(("new", oldest), ("second, which the run does not take", capability)) is None
    assert f"old (compute capability {capability[0]}.{capability[1]})" in (reason(("old", capability)) or "")


@on_each(*({"batch_per_device": 64, "steps": 12, "lr": 0.02, **fields} for fields in OPTIMIZERS), one_process=True)
def test_steps_lower_the_loss_and_change_all_parameters_from_those_of_the_seed(run: Run) -> None:
    first = results(run)
    assert first["losses"][1] < first["losses"][0]
    constant = [name for name, array in start(first).items() if np.array_equal(first[name], array)]
    # The gammas of the study's input batch norm are fixed at 1.
    assert constant in ([], ["parameter/features.0.gamma/0"], ["parameter/input_norm.weight"])
    assert distance(start(first), frameworks.open_session(dataclasses.replace(run, seed=1)).state()) > 0.1


@on_each(
    *({"devices": 2, **fields} for fields in (*IN_PROCESS, *BETWEEN_WORKERS, ACCUMULATING, *WITHOUT_SYNC)),
    among=[name for name in INSTALLED if name != "pytorch"],  # whose workers tests/test_pytorch.py starts once
)
def test_devices_train_as_emulated_ones_or_without_synchronisation_each_for_itself(run: Run, tmp_path: Path) -> None:
    in_process = run.workers == 1
    check_devices(
        run, [counted(frameworks.open_session(run), run)] if in_process else workers(run, tmp_path, "counted")
    )


def check_devices(run: Run, seen: Sequence[Arrays]) -> None:
    """Compare parameters and statistics, and an evaluation of 70 images, the last 6 in a short batch."""
    independent = run.kvstore.name == "none"
    expected = emulated(run)
    assert all(distance(start(worker), start(seen[0])) == 0 for worker in seen)
    correct, samples, _ = np.sum([worker["evaluated"] for worker in seen], axis=0)
    assert {tuple(worker["summed"]) for worker in seen} == {(correct, samples)}
    assert samples == expected["evaluated"][1] == 70
    assert {str(worker["sums right"]) for worker in seen} == {"None" if independent else "True"}
    if independent:
        assert min(distance(worker, expected) for worker in seen) > 1e-3
        assert len(seen) == 1 or distance(*seen) > 1e-3
        return
    assert all(distance(worker, seen[0]) < 1e-6 for worker in seen)
    assert distance(seen[0], expected) < 1e-5
    assert correct == expected["evaluated"][0]
    loss = np.sum([worker["evaluated"][2] * worker["evaluated"][1] for worker in seen]) / samples
    assert loss == pytest.approx(expected["evaluated"][2], rel=1e-4)
    assert np.mean([worker["losses"] for worker in seen], axis=0) == pytest.approx(expected["losses"], rel=1e-4)
    for worker in seen:
        if "per step" in worker:  # micro-batches are summed once
            assert worker["per step"].tolist() == worker["arrays"].tolist() * run.steps


@on_each({"batch_per_device": 32, **MICRO_BATCHES}, {**TWO_SHARES, "workers": 2, "kvstore": "dist_sync"})
def test_micro_batches_train_as_one_batch_without_batch_norm(run: Run, tmp_path: Path) -> None:
    check_micro_batches(run, [results(run)] if run.workers == 1 else workers(run, tmp_path))


def check_micro_batches(run: Run, seen: Sequence[Arrays]) -> None:
    alone: dict[str, Any] = {"devices": 1, "workers": 1, "cores_per_worker": None, "kvstore": Device()}
    expected = results(dataclasses.replace(run, accumulate=1, batch_per_device=128, **alone))
    for worker in seen:
        weights = {name: array for name, array in worker.items() if np.ndim(array) > 1}
        assert distance(weights, expected) < 1e-6
        assert distance(weights, start(worker)) > 1e-5
        # The bias begins at zero: it has no digits but those of its gradient.
        assert distance(worker, expected) < 1e-5


@on_each({"accumulate": 3}, one_process=True)
def test_each_micro_batch_updates_the_running_statistics(run: Run) -> None:
    def statistics(run: Run, steps: int) -> Arrays:
        session = frameworks.open_session(run)
        for batch in batches(run, steps=steps):
            session.step(batch, 0.0)
        return {name: array for name, array in parameters(session).items() if "running" in name}

    seen, expected = statistics(run, 1), statistics(dataclasses.replace(run, accumulate=1, global_batch=8), 3)
    for name, array in seen.items():
        np.testing.assert_array_equal(array, expected[name])


@on_each(*({"devices": 2, "steps": 3, **fields} for fields in OPTIMIZERS[1:]), one_process=True)
def test_every_optimizer_trains_two_devices_as_emulated_ones(run: Run) -> None:
    assert distance(results(run), emulated(run)) < 1e-5


@on_each(
    *OPTIMIZERS,
    {"devices": 2},
    {"devices": 2, "emulated": True},
    {"accumulate": 2},
    {"model": "cifar_vgg16", "batch_per_device": 2},  # has dropout
    one_process=True,
)
def test_a_session_resumes_to_the_same_bits_from_the_state_of_another(run: Run) -> None:
    rates = (0.05, 0.02, 0.04, 0.01)

    def train(session: Session, first: int, steps: int) -> Arrays:
        for step, batch in enumerate(batches(run, first_step=first, steps=steps), start=first):
            session.step(batch, rates[step])
        return {name: array.copy() for name, array in session.state().items()}

    session = frameworks.open_session(run)
    cut, end = train(session, 0, 2), train(session, 2, 2)
    del session
    give_memory_back()
    resumed = frameworks.open_session(run, first_step=2, state=cut)
    assert all(np.array_equal(array, cut[name]) for name, array in resumed.state().items())
    after = train(resumed, 2, 2)
    assert after.keys() == end.keys()
    assert all(np.array_equal(after[name], end[name]) for name in end)
    assert distance(end, cut) > 1e-3


def test_steps_are_synchronised_again_after_one_without_it_has_failed() -> None:
    session = frameworks.open_session(planned("reference").run)
    with pytest.raises(MemoryError), session.without_sync():
        raise MemoryError
    assert session._syncs


@on_each({})
def test_the_loss_of_a_window_is_the_mean_over_its_samples_and_a_batch_is_copied_once(run: Run) -> None:
    session = frameworks.open_session(run)
    # A core of today does 1e9 to 1e12 multiply-adds a second; on a loaded machine less.
    assert 1e8 < session.peak_flops() < MACHINE.cores * 1e13
    batch, other = batches(run, steps=2)
    losses = []
    for window in ([batch], [other], [batch, other, batch]):
        for each in window:
            session.step(each, 0.0)
        losses.append(session.drain())
    assert losses[2] == pytest.approx((2 * losses[0] + losses[1]) / 3, rel=1e-5)
    assert np.isnan(session.drain())
    # A batch's images are on the device already: writing to them, where that is allowed, changes nothing.
    with contextlib.suppress(ValueError):
        batch.images[:] = 0
    session.step(batch, 0.0)
    assert session.drain() == losses[0]


@on_each({}, {"devices": 2}, one_process=True)
def test_an_evaluation_does_not_depend_on_the_size_of_its_batches(run: Run) -> None:
    session = frameworks.open_session(run)
    evaluations = [session.evaluate(framework_worker.validation(run, batch)) for batch in (10, 32, 70)]
    first_correct, _, first_loss = evaluations[0]
    assert {(correct, samples) for correct, samples, _ in evaluations} == {(first_correct, 70)}
    assert [loss for *_, loss in evaluations] == pytest.approx([first_loss] * 3, rel=1e-6)


@on_each({}, {"devices": 2}, one_process=True)
def test_batches_placed_ahead_by_a_thread_train_to_the_same_bits(run: Run) -> None:
    seen = framework_worker.placed_ahead(frameworks.open_session(run), run, 0, Path())
    expected = results(run)  # which averages the devices' statistics at its end
    names = [name for name in seen if name.startswith("parameter/") and "running" not in name]
    assert all(np.array_equal(seen[name], expected[name]) for name in names)


@on_each(
    {"devices": 4, "gradient_noise": 1},
    {"devices": 4, "emulated": True, "gradient_noise": 1},
    {"accumulate": 4, "gradient_noise": 1},
    {"devices": 2, "accumulate": 2, "gradient_noise": 1},
    one_process=True,
)
def test_norms_are_those_of_one_device_s_gradient_and_of_the_mean(run: Run) -> None:
    run = dataclasses.replace(run, optimizer=PLAIN)

    def square(arrays: Arrays) -> float:
        return sum(float(np.square(array).sum(dtype=np.float64)) for array in arrays.values())

    session = frameworks.open_session(run)
    of_mean = square(gradients(session, run))
    session.drain()
    ((small, large),) = session.gradient_norms()
    assert session.gradient_norms() == []
    assert large == pytest.approx(of_mean, rel=1e-3)
    single = dataclasses.replace(planned(run.framework).run, optimizer=PLAIN)
    shared = dataclasses.replace(run, workers=4, accumulate=1, gradient_noise=None)
    squares = [square(gradients(frameworks.open_session(single), shared, device)) for device in range(4)]
    assert small == pytest.approx(np.mean(squares), rel=1e-3)
    assert large < small


@on_each({"data": CIFAR10(crop=32, jitter=False), "batch_per_device": 32, "lr": 0.001})
def test_crops_cut_on_the_device_are_those_cut_on_the_host(run: Run) -> None:
    on_device = dataclasses.replace(run, data=dataclasses.replace(run.data, on_device=True))
    assert isinstance(next(batches(on_device)).images, data.Crops)
    assert not isinstance(next(batches(run)).images, data.Crops)
    assert distance(*(trained(frameworks.open_session(each), each) for each in (on_device, run))) < 1e-5


@on_each({"model": "cifar_airbench94_slim"})
def test_patches_of_the_images_are_white_after_a_whitening_convolution(run: Run) -> None:
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


TEN_STEPS = {"model": "cifar_resnet8_v2", "lr": 0.01, "batch_per_device": 64, "steps": 10, "layout": "NCHW"}
WARM_UP = {"warmup_epochs": 0.1, "warmup_from": 0.002}
# At the end of airbench94, images of 16 pixels are one pixel each: too few values for one variance in both frameworks.
SLIM = {"model": "cifar_airbench94_slim", "data": Synthetic(crop=32, train=640, validation=70), "batch_per_device": 128}
STEPS: tuple[dict[str, Any], ...] = (
    {"lr": Fixed(base=0.02, decay="linear", **WARM_UP)},
    {"lr": Fixed(base=0.02, **WARM_UP), "optimizer": SGD(momentum_correction=True)},
    {"lr": Fixed(base=0.02, warmup_epochs=0.2), "optimizer": SGD(momentum_correction=True)},  # from 0
    {"lr": Fixed(base=0.01, decay="cosine"), "optimizer": "nesterov"},
    # Orthogonalising makes as much of a direction that is nearly rounding as of any other: small steps.
    {"lr": 0.001, "optimizer": Muon(lr=0.001)},
    {"lr": 0.001, "optimizer": Muon(lr=0.001), **SLIM, "steps": 3},
    {"lr": 0.001, "optimizer": Muon(lr=0.001, unit_weights=True)},
    {
        "lr": Fixed(base=0.001, decay="linear"),
        "optimizer": AdamW(beta1=0.8, beta2=0.99, weight_decay=0.1, epsilon=1e-3),
    },
    {"label_smoothing": 0.1, "optimizer": SGD(decay_gammas=False, weight_decay=0.01)},
    {"zero_init_gamma": True},
    {"devices": 2, "emulated": True, "gradient_noise": 1},
    {"model": "cifar_resnet20_v2_no_norm", "lr": 1e-4},
    {"model": "cifar_mlp", "devices": 2, "gradient_noise": 1},
)


def in_layer_order(arrays: Arrays, prefix: str = "") -> list[np.ndarray]:
    """Return the parameters of the first device; frameworks name them differently."""
    names = [name for name in arrays if name.startswith(prefix + "parameter/") and not name.endswith("/1")]
    return [arrays[name] for name in names]


@on_each(*({**TEN_STEPS, **fields} for fields in STEPS), among=[name for name in INSTALLED if name != "mxnet"])
def test_frameworks_take_the_same_steps(run: Run) -> None:
    """Compare losses, norms, parameters and statistics after ten steps from the same weights, and their evaluation.

    PyTorch divides the variance of n values by n - 1 for its running mean, MXNet by n: here a thousandth of half of it.
    """
    expected = results(dataclasses.replace(run, framework="mxnet"))
    state = frameworks.open_session(run).state()
    weights = iter(in_layer_order(expected, "start/"))
    by_layer: dict[str, np.ndarray] = {}
    for name, array in state.items():
        if name.startswith("parameter/") and array.dtype == np.float32:
            layer = name[:-2] if name.endswith(("/0", "/1")) else name
            if layer not in by_layer:
                by_layer[layer] = next(weights)
            assert by_layer[layer].shape == array.shape
            state[name] = by_layer[layer]
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
    ("framework", "kind", "message", "memory"),
    [
        ("mxnet", "MXNetError", "Check failed: e == cudaSuccess || e == cudaErrorCudartUnloading: out of memory", True),
        ("mxnet", "MXNetError", "Failed to allocate CPU Memory", True),  # as seen
        ("mxnet", "MXNetError", "Size of tensor you are trying to allocate is larger than 2^31 elements.", True),
        ("mxnet", "MXNetError", "Check failed: e == CUDNN_STATUS_SUCCESS (4 vs. 0) : cuDNN: INTERNAL_ERROR", False),
        ("mxnet", "ValueError", "the file is out of memory of anybody", False),
        ("pytorch", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of", True),
        ("pytorch", "RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes", True),
        ("pytorch", "RuntimeError", "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", True),
        ("pytorch", "RuntimeError", "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", True),
        ("pytorch", "RuntimeError", "CUDA error: device-side assert triggered", False),
        ("pytorch", "RuntimeError", "Last error:\nFailed to CUDA calloc async 6291456 bytes", True),  # NCCL's
    ],
)
def test_out_of_memory_errors_are_recognised(framework: str, kind: str, message: str, memory: bool) -> None:
    error = type(kind, (ValueError if kind == "ValueError" else RuntimeError,), {})(message)
    assert frameworks.load(framework).is_out_of_memory(error) == memory
    assert frameworks.load(framework).is_out_of_memory(MemoryError())


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("Stack trace:\n  File a.cc\nMXNetError: Check failed: a == b\n", "MXNetError: Check failed: a == b"),
        (
            "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in "
            "https://docs.nvidia.com/cuda/ for more information.\nCUDA kernel errors might be asynchronous",
            "CUDA error: an illegal memory access was encountered",
        ),
        (
            "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function "
            "failed.\nLast error:\nCuda failure 217 'peer access is not supported between these two devices'",
            "Cuda failure 217 'peer access is not supported between these two devices'",
        ),
        ("\n", ""),
    ],
)
def test_the_reason_is_the_line_of_a_message_that_says_what_is_wrong(message: str, line: str) -> None:
    assert one_line(RuntimeError(message)) == line
