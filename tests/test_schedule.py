import pytest

from poc import Exponential, Fixed, Linear, SquareRoot
from poc.config.rates import Schedule
from poc.values import UserError


@pytest.mark.parametrize(
    ("rule", "rates"),
    [
        # The study's: 0.05 per 128 samples of global batch.
        (Linear(base=0.05, per=128), {64: 0.025, 128: 0.05, 256: 0.1, 512: 0.2, 1024: 0.4, 8192: 3.2}),
        (SquareRoot(base=0.05, per=128), {2048: 0.2}),
        (Fixed(base=0.4), {1: 0.4, 2048: 0.4}),
    ],
)
def test_a_rule_gives_the_rate_of_a_global_batch(rule: Fixed, rates: dict[int, float]) -> None:
    assert {batch: rule.at(batch) for batch in rates} == rates


# Over 20 steps after a warm-up of 10: its start, its middle, and what the step after the last would have.
@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("constant", [(10, 2.0), (20, 2.0), (30, 2.0)]),
        ("linear", [(10, 2.0), (15, 1.5), (20, 1.0), (30, 0.0)]),
        ("cosine", [(10, 2.0), (20, 1.0), (25, 1 - 0.5**0.5), (30, 0.0)]),
    ],
)
def test_the_rate_rises_in_the_warm_up_and_decays_after_it(decay: str, rates: list[tuple[int, float]]) -> None:
    schedule = Schedule(learning_rate=2.0, warmup_from=0.5, warmup_steps=10, steps=30, decay=decay)
    for step, rate in [(0, 0.5), (5, 1.25), (9, 1.85), *rates]:
        assert schedule.rate(step) == pytest.approx(rate, abs=1e-12)


def test_a_rate_in_steps_drops_at_shares_of_the_training() -> None:
    fixed = {"learning_rate": 1.0, "warmup_from": 0.0, "warmup_steps": 0, "steps": 100}
    schedule = Schedule(**fixed, decay="steps", decay_at=(0.5, 0.75))
    assert [schedule.rate(step) for step in (0, 49, 50, 74, 75, 99)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


def test_the_rate_of_a_range_test_grows_by_the_same_factor_every_step_from_low_to_high() -> None:
    schedule = Exponential(low=1e-4, high=10.0).schedule(global_batch=64, steps_per_epoch=20, steps=101)
    assert [schedule.rate(step) for step in (0, 20, 50, 100)] == pytest.approx([1e-4, 1e-3, 10**-1.5, 10.0])
    with pytest.raises(UserError, match=r"Exponential.low: 2.0 is not allowed"):
        Exponential(low=2.0, high=2.0)
