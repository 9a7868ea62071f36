"""What several devices of one process make of gradients in long arrays: where they are updated, float16's scale."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from poc.engines import loss_scale
from poc.engines.gluon import compatibility
from tests.engine_worker import planned

compatibility.prepare()
import mxnet as mx  # noqa: E402

from poc.engines.gluon import exchange  # noqa: E402

DEVICES = 3


def connected(dtype: str = "float32", **fields: Any) -> exchange.InProcess:
    """Three devices with four arrays, of 4, 3, 2 and 1 dimensions, of ones."""
    run = dataclasses.replace(planned("gluon", devices=DEVICES, **fields).run, dtype=dtype)
    parameters = [mx.gluon.Parameter(f"weight{n}", shape=(2,) * n) for n in (1, 2, 3, 4)]
    for parameter in parameters:
        parameter.initialize(mx.init.One(), ctx=[mx.cpu(device) for device in range(DEVICES)])
    return exchange.connect(run, parameters, [])


def fill(made: exchange.InProcess, value: float) -> None:
    for array in made.trained:
        for gradients in array.gradients:
            gradients[:] = value


def held(made: exchange.InProcess) -> np.ndarray:
    """The first values of all arrays, (arrays, devices)."""
    return np.array([[values.asnumpy()[0] for values in array.values] for array in made.trained])


@pytest.mark.parametrize("name", ["device", "local"])
def test_arrays_are_updated_once_on_the_devices_in_turn(name: str) -> None:
    made = connected(exchange=name)
    fill(made, 1.0)
    made.step(0.1)
    assert sorted(made._optimizers) == [(0, 0), (1, 1), (2, 2), (3, 0)]
    assert len(set(held(made).ravel())) == 1
    assert {name for name in made.state() if name.endswith("momentum")} == {
        f"optimizer/{number}/{number % DEVICES}/momentum" for number in range(4)
    }


@pytest.mark.parametrize("name", ["device", "nccl", "independent"])
def test_a_step_that_overflows_on_one_device_is_skipped_on_all_and_halves_the_scale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = mx.kv.create
    monkeypatch.setattr(mx.kv, "create", lambda name: create("device" if name == "nccl" else name))
    made, plain = connected("float16", exchange=name), connected(exchange=name)
    assert made.loss_scale
    assert not plain.loss_scale

    def step(value: float, overflow: bool = False) -> None:
        fill(made, value * made.loss_scale.by_device[0].asscalar())
        if overflow:
            made.trained[1].gradients[2][0] = np.inf
        made.step(0.1)
        if not overflow:
            fill(plain, value)
            plain.step(0.1)
        mx.nd.waitall()
        assert np.array_equal(held(made), held(plain))

    for overflow, scale, good in ((False, 1024, 1), (True, 512, 0), (True, 256, 0), (False, 256, 1), (False, 256, 2)):
        step(1.0, overflow)
        assert made.loss_scale.state().tolist() == [scale, good]
        assert [float(each.asscalar()) for each in made.loss_scale.by_device] == [scale] * DEVICES
    again = connected("float16", exchange=name)
    again.load_state(made.state())
    assert again.state().keys() == made.state().keys()
    assert all(np.array_equal(array, again.state()[key]) for key, array in made.state().items())


def test_the_scale_doubles_after_two_thousand_good_steps_in_a_row() -> None:
    scale, good = 8.0, 0.0
    seen = []
    for step in range(1, 4100):
        scale, good = loss_scale.following(scale, good, float(step != 50))
        if not seen or scale != seen[-1][1]:
            seen.append((step, scale))
    assert seen == [(1, 8.0), (50, 4.0), (2050, 8.0), (4050, 16.0)]
