"""Steps that PyTorch records and replays. A tape of operators takes the CUDA graph's place (tests/torch_tape.py)."""

import contextlib
import dataclasses
import importlib
import random
from typing import Any

import numpy as np
import pytest

from poc import SGD, AdamW, Muon, Synthetic, TorchOptimizer
from poc.config.run import Run
from tests.conftest import needs_torch
from tests.framework_worker import Arrays, batches, planned

pytestmark = [pytest.mark.slow, needs_torch]
STEPS = 8
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": SGD(momentum_correction=True), "accumulate": 2, "label_smoothing": 0.1},
    {"optimizer": "nesterov", "label_smoothing": 0.1},
    {"optimizer": "nesterov", "dtype": "bfloat16", "layout": "NHWC", "accumulate": 2},
    {"optimizer": Muon(lr=0.02), "layout": "NHWC"},
    {"optimizer": Muon(lr=0.02, unit_weights=True), "dtype": "bfloat16", "label_smoothing": 0.1},
    {"optimizer": AdamW(epsilon=1e-3), "lr": 0.001, "accumulate": 2},
    {"optimizer": AdamW(epsilon=1e-3), "lr": 0.001, "dtype": "float16"},
    {"optimizer": TorchOptimizer("RMSprop", foreach=True, eps=1e-3), "lr": 0.001},
    {"dtype": "float16", "layout": "NHWC"},
    {"data": Synthetic(size=16, crop=16, train=640, validation=70, fixed=True)},
)


def run_of(**fields: Any) -> Run:
    fields = {"batch_per_device": 4, **fields}
    dtype = fields.pop("dtype", "float32")  # the plan would ask for a CPU that has it
    return dataclasses.replace(planned("pytorch", **fields, steps=STEPS).run, dtype=dtype)


@pytest.fixture(autouse=True)
def _optimizers_take_this_device_for_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adam", "rmsprop"):
        module = importlib.import_module(f"torch.optim.{name}")
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **options: ["cpu"])


def opened(run: Run, new_graph: Any = None, **options: Any) -> Any:
    from poc.frameworks.pytorch.session import TorchSession

    return TorchSession(run, new_graph=new_graph, **options)


def rate(step: int) -> float:
    """Return a learning rate that changes, also by half, and is zero once."""
    return (0.01, 0.02, 0.01, 0.01, 0.02, 0.0, 0.01, 0.005)[step]


def train(session: Any, run: Run, first_step: int = 0, steps: int = STEPS) -> Arrays:
    losses = []
    for step, batch in enumerate(batches(run, first_step=first_step, steps=steps), start=first_step):
        session.step(batch, rate(step) * (0.1 if run.learning_rate < 0.01 else 1))
        losses.append(session.drain())
    return {**session.state(), "losses": np.array(losses)}


def never_warm(session: Any) -> Any:
    session._replays.is_warm = lambda kind: False
    return session


@pytest.mark.parametrize("fields", VARIANTS, ids=str)
def test_replayed_steps_are_eager_ones_bit_for_bit(fields: dict[str, Any]) -> None:
    """The eager session reads its learning rate from a tensor, too; without that, sums are rounded once less."""
    replays_are_eager_steps(run_of(**fields))


@pytest.mark.filterwarnings("ignore:.*weight_norm")
def test_each_replay_draws_the_step_s_own_dropout_and_computes_its_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch import nn

    from poc.frameworks.pytorch import session
    from poc.frameworks.pytorch.networks import registered

    def with_dropout(*arguments: Any, **options: Any) -> nn.Module:
        normalised: Any = nn.utils.weight_norm(nn.Conv2d(3, 3, 1))  # keeps its weight in a plain attribute
        normalised.best, normalised.mask = float("nan"), torch.eye(3).to_sparse()
        return nn.Sequential(nn.Dropout(0.2), normalised, registered(*arguments, **options))

    monkeypatch.setattr(session, "registered", with_dropout)
    replays_are_eager_steps(run_of())


def replays_are_eager_steps(run: Run) -> None:
    from tests.torch_tape import Tape

    tapes = []

    def new_tape() -> Tape:
        tapes.append(Tape())
        return tapes[-1]

    replayed, eager = train(opened(run, new_tape), run), train(never_warm(opened(run, Tape)), run)
    assert len(tapes) == 1
    assert replayed.keys() == eager.keys()
    for name, array in eager.items():
        np.testing.assert_array_equal(replayed[name], array, err_msg=name)
    assert len(set(eager["losses"])) == STEPS or run.data.fixed
    plain = train(opened(run), run)
    np.testing.assert_allclose(plain["losses"], eager["losses"], rtol=1e-4 if run.dtype == "float32" else 0.02)


def test_other_kinds_of_steps_and_a_resumed_session_mix_with_replays() -> None:
    from tests.torch_tape import Tape

    run = run_of(accumulate=2, gradient_noise=4)
    seen = []
    for is_eager in (False, True):
        session = opened(run, Tape)
        if is_eager:
            never_warm(session)
        for step, batch in enumerate(batches(run, steps=STEPS)):
            with session.without_sync() if step == 6 else contextlib.nullcontext():
                session.step(batch, rate(step), norms=step % 4 == 0)
        halfway = session.state()
        resumed = opened(run, Tape, first_step=STEPS, state=halfway)
        if is_eager:
            never_warm(resumed)
        for step, batch in enumerate(batches(run, first_step=STEPS, steps=STEPS)):
            for each in (session, resumed):
                each.step(batch, rate(step))
        ends = session.state(), resumed.state()
        assert all(np.array_equal(ends[0][name], array) for name, array in ends[1].items())
        seen.append({**ends[0], "losses": np.array(session.drain()), "norms": np.array(session.gradient_norms())})
    for name, array in seen[0].items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)


def test_a_step_without_synchronisation_is_recorded_once_its_like_is_and_without_eager_gradients() -> None:
    from tests.torch_tape import Tape

    cleared = []

    class Checked(Tape):
        def record(self, work: Any) -> None:
            cleared.append(all(parameter.grad is None for parameter in session._trained))
            super().record(work)

    run = run_of()
    session = opened(run, Checked)
    for step, batch in enumerate(batches(run, steps=STEPS)):
        with session.without_sync() if step == STEPS - 1 else contextlib.nullcontext():
            session.step(batch, 0.01)
    assert cleared == [True, True]


NOT_PERMITTED = "CUDA error: operation not permitted when stream is capturing"
TOO_LITTLE = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/"
PREVIOUS = "CUDA error: operation failed due to a previous error during capture"


@pytest.mark.parametrize(
    ("of_work", "at_end", "message"),
    [
        (NOT_PERMITTED, "", rf"graphs=False \(RuntimeError: {NOT_PERMITTED}\)"),
        (NOT_PERMITTED, PREVIOUS, rf"graphs=False \(RuntimeError: {NOT_PERMITTED}\)"),
        ("", NOT_PERMITTED, rf"graphs=False \(RuntimeError: {NOT_PERMITTED}\)"),
        (TOO_LITTLE, PREVIOUS, f"^{TOO_LITTLE}$"),
        ("", TOO_LITTLE, f"^{TOO_LITTLE}$"),
    ],
)
def test_a_step_that_cannot_be_recorded_is_an_error_with_the_first_reason(
    of_work: str, at_end: str, message: str
) -> None:
    from poc.frameworks.pytorch.graphs import RecordedSteps

    class Broken:
        def record(self, work: Any) -> None:
            try:
                work()
            finally:
                if at_end:
                    raise RuntimeError(at_end)

    def work(batch: Any) -> None:
        try:
            {}["what a model looks up, and makes if it is not there"]
        except KeyError:
            if of_work:
                raise RuntimeError(of_work)  # noqa: B904  # as models do

    with pytest.raises(RuntimeError, match=message):
        RecordedSteps(Broken, warmup_steps=0).run("a kind", [], work)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        *(("replaces", r"0\.running_mean"), ("draws", "random numbers")),
        *(("keeps a tensor", r"0\.latest"), ("counts", r"0\.latest")),
    ],
)
def test_a_model_whose_replays_would_repeat_one_step_cannot_be_recorded(
    way: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch import nn

    from poc.frameworks.pytorch import session
    from poc.frameworks.pytorch.networks import registered
    from tests.torch_tape import Tape

    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(()))
            self.latest: Any = 0

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if way == "draws":
                return images * random.choice([0.5, 1.0])
            if way == "counts":
                self.latest += 1
                return images / self.latest
            if way == "keeps a tensor":
                self.latest = 0.9 * self.latest + 0.1 * images.detach().mean()
                return images - self.latest
            self.running_mean = 0.9 * self.running_mean + 0.1 * images.detach().mean()
            return images - self.running_mean

    def centred(*arguments: Any, **options: Any) -> nn.Module:
        return nn.Sequential(Centred(), registered(*arguments, **options))

    monkeypatch.setattr(session, "registered", centred)
    run = run_of()
    with pytest.raises(RuntimeError, match=f"graphs=False .*{words}"):
        train(opened(run, Tape), run)


@pytest.mark.parametrize(
    "fields", [{"devices": 2, "emulated": True}, {"optimizer": TorchOptimizer("Adafactor", eps=(None, 1e-3))}], ids=str
)
def test_what_cannot_be_recorded_is_not_tried(fields: dict[str, Any]) -> None:
    from tests.torch_tape import Tape

    assert opened(run_of(**fields), Tape)._replays is None
