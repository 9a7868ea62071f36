"""The pages of details behind results.md, in the order of their links."""

from __future__ import annotations

from poc.report import markdown
from poc.report.page import Block, Page, section
from poc.report.results import Results
from poc.report.sections import method, recipes, speed, studies, trainings


def settings(results: Results) -> list[Block]:
    """Return every setting of every machine, a table for each machine, this one first."""
    blocks: list[Block] = [
        'The latest first, quick runs last; "batch" is per device. [rows.csv](rows.csv) has every repeat.'
    ]
    for name in dict.fromkeys(results.runs.machine):
        blocks += section(name, markdown.table([recipes.line(row) for row in recipes.settings(results, name)]))
    return blocks


PAGES = (
    Page("learning_rate", "Learning rate", trainings.SECTIONS),
    Page("scaling", "Scaling and gradient synchronisation", speed.SCALING),
    Page("models", "Models, batch sizes and precisions", speed.MODELS),
    Page("settings", "All settings", (settings,)),
    Page("studies", "Published studies", (studies.every,)),
    Page("method", "How it was measured", method.SECTIONS),
)
