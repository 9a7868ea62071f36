"""Dynamic loss scaling for float16, the same in every framework (Micikevicius et al. 2018, Mixed Precision Training).

float16 has no values below 6e-8, which gradients have: the loss is multiplied by a scale before the backward pass, and
the gradients are divided by it after. A step whose gradients overflow is skipped. The rule is that of PyTorch's
GradScaler; nothing is fetched from the device to follow it.
"""

from __future__ import annotations

from typing import Any

START = 1024.0
"""Scale of one sample's loss in the first step."""
GROWTH_INTERVAL = 2000


class LossScale:
    """A scale that doubles after 2,000 finite steps in a row, and halves after a step that overflows."""

    def __init__(self, start: Any) -> None:
        self.scale = start
        """A number, or an array of any framework with one value."""
        self.finite_steps = start * 0
        """Steps since the scale changed or a step overflowed."""

    def update(self, finite: Any) -> None:
        """Set the scale of the next step: `finite` is 1.0 after a step with finite gradients, else 0.0."""
        steps = (self.finite_steps + 1) * finite
        grows = (steps >= GROWTH_INTERVAL) * finite
        self.scale = self.scale * (0.5 + 0.5 * finite + grows)
        self.finite_steps = steps * (1 - grows)
