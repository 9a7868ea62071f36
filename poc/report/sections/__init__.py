"""Sections of the pages: functions of the results that return blocks, nothing if there is nothing to show."""

from __future__ import annotations

from poc.report.page import Page
from poc.report.sections import details, recipes

PAGES = (
    Page("learning_rate", "Learning rate", details.learning_rate),
    Page("scaling", "Scaling and gradient synchronisation", details.scaling_and_kvstores),
    Page("models", "Models, batch sizes and precisions", details.models),
    Page("settings", "All settings", recipes.every_setting),
    Page("studies", "Published studies", details.studies),
    Page("method", "How it was measured", details.method),
)
"""The pages of details, in the order of their links."""
