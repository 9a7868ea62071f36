"""The scale of the loss in float16, the same for every framework (Micikevicius et al. 2018, Mixed Precision Training).

float16 has no values below 6e-8, which gradients have: the loss is multiplied before the backward pass, and gradients
are divided after it. A step whose gradients overflow is skipped.
"""

from __future__ import annotations

from typing import Any

START = 1024.0
"""Of a sample's loss, in the first step."""
_GOOD_STEPS = 2000


def following(scale: Any, good: Any, finite: Any) -> tuple[Any, Any]:
    """The scale, and how many steps it has been good for, after a step whose gradients are `finite` (1.0) or not (0.0).

    Numbers or arrays of any framework, of one value: it doubles after 2,000 good steps in a row, and halves otherwise.
    """
    good = (good + 1) * finite
    grown = (good >= _GOOD_STEPS) * finite
    return scale * (0.5 + 0.5 * finite + grown), good * (1 - grown)
