from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poc import Fixed, Linear, SquareRoot
from poc.config.rates import Schedule


def test_rules_give_the_rate_of_a_total_batch() -> None:
    # The study's: 0.05 for every 128 samples of total batch.
    rates = [Linear(base=0.05, per=128).at(global_batch) for global_batch in (64, 128, 256, 512, 1024, 8192)]
    assert rates == [0.025, 0.05, 0.1, 0.2, 0.4, 3.2]
    assert SquareRoot(base=0.05, per=128).at(2048) == 0.2
    assert str(SquareRoot(base=0.05, per=128)) == "square root: 0.05 per 128"
    assert Fixed(base=0.4).at(2048) == Fixed(base=0.4).at(1) == 0.4


def test_warm_up_rises_every_step() -> None:
    schedule = Schedule(learning_rate=0.5, warmup_from=0.1, warmup_steps=4, steps=2000)
    rates = [schedule.rate(step) for step in (0, 1, 2, 3, 4, 5, 1000)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.5], rel=1e-12)


# Over 20 steps after a warm-up of 10: its start, its middle, and what the step after the last would have.
@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("constant", [(10, 2.0), (20, 2.0), (30, 2.0)]),
        ("linear", [(10, 2.0), (15, 1.5), (20, 1.0), (30, 0.0)]),
        ("cosine", [(10, 2.0), (20, 1.0), (25, 1 - 0.5**0.5), (30, 0.0)]),
    ],
)
def test_the_rate_decays_after_the_warm_up(decay: str, rates: list[tuple[int, float]]) -> None:
    schedule = Schedule(learning_rate=2.0, warmup_from=0.0, warmup_steps=10, steps=30, decay=decay)
    assert schedule.rate(5) == 1.0
    for step, rate in rates:
        assert schedule.rate(step) == pytest.approx(rate, abs=1e-12)


def test_a_rate_in_steps_falls_at_shares_of_the_training() -> None:
    schedule = Schedule(
        learning_rate=1.0, warmup_from=0.0, warmup_steps=0, steps=100, decay="steps", decay_at=(0.5, 0.75)
    )
    assert [schedule.rate(step) for step in (0, 49, 50, 74, 75, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@given(
    st.sampled_from(["constant", "cosine", "linear"]),
    st.integers(1, 1000),
    st.integers(0, 999),
    st.floats(1e-6, 1e3),
)
def test_a_rate_is_never_negative_nor_above_its_target(decay: str, steps: int, warmup: int, target: float) -> None:
    warmup = min(warmup, steps - 1)
    schedule = Schedule(learning_rate=target, warmup_from=0.0, warmup_steps=warmup, steps=steps, decay=decay)
    assert all(0 <= schedule.rate(step) <= target * (1 + 1e-12) for step in range(steps))
