from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poc.errors import UserError
from poc.schedule import Linear, learning_rate, steps_per_epoch

# The study's own rates: 0.05 for every 128 samples of total batch.
SCALED = [(64, 0.025), (128, 0.05), (256, 0.1), (512, 0.2), (1024, 0.4), (8192, 3.2)]


@pytest.mark.parametrize(("total_batch", "rate"), SCALED)
def test_the_linear_rule_gives_the_studys_rates(total_batch: int, rate: float) -> None:
    assert Linear(base=0.05, per=128).rate(total_batch) == rate


# Warm-up of 4 steps from 0.1 to 0.5, then constant.
WARM = [(0, 0.1), (1, 0.2), (2, 0.3), (3, 0.4), (4, 0.5), (5, 0.5), (1000, 0.5)]


@pytest.mark.parametrize(("step", "rate"), WARM)
def test_warm_up_rises_every_step(step: int, rate: float) -> None:
    assert learning_rate(step, target=0.5, start=0.1, warmup_steps=4) == pytest.approx(rate, rel=1e-12)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert learning_rate(0, target=0.4, start=0.0, warmup_steps=0) == 0.4


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_an_epoch_is_its_whole_batches(samples: int, batch: int) -> None:
    if batch > samples:
        with pytest.raises(UserError, match="larger than"):
            steps_per_epoch(samples, batch)
    else:
        assert 0 <= samples - steps_per_epoch(samples, batch) * batch < batch


@pytest.mark.parametrize("fields", [{"base": 0, "per": 128}, {"base": -1, "per": 128}, {"base": 0.1, "per": 0}])
def test_a_rule_that_gives_no_positive_rate_is_refused(fields: dict[str, float]) -> None:
    with pytest.raises(UserError, match="above zero"):
        Linear(**fields)  # type: ignore[arg-type]
