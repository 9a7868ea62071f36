"""Sections of the pages: functions of the results that return blocks, nothing if there is nothing to show."""

from __future__ import annotations

from poc.report.page import Page
from poc.report.sections import method, published, recipes, speed, trainings

PAGES = (
    Page("learning_rate", "Learning rate", trainings.SECTIONS),
    Page("scaling", "Scaling and gradient synchronisation", speed.SCALING),
    Page("models", "Models, batch sizes and precisions", speed.MODELS),
    Page("settings", "All settings", (recipes.every_setting,)),
    Page("studies", "Published studies", (published.every,)),
    Page("method", "How it was measured", method.SECTIONS),
)
"""The pages of details, in the order of their links."""
