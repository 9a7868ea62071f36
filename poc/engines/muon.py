"""What every engine's Muon has in common (Jordan et al. 2024)."""

from __future__ import annotations

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic Newton-Schulz iteration that brings singular values near to one."""
ITERATIONS = 5
