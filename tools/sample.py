"""Make the sample pages from the journals in reference/: results.md, and all pages in reference/.

.venv/bin/python -m tools.sample
"""

from pathlib import Path

from poc import published, report
from poc.records import journal
from poc.report import table
from poc.report.results import Results

HOME = Path(__file__).resolve().parents[1]
MACHINE = "EPYC Zen 5, 2 cores"  # the pages are about it and show the others with it
REFERENCE = (
    f"These are this project's own measurements on the machine {MACHINE}, a virtual machine with two CPU cores; for "
    "comparison the pages also show two others, EPYC-2 without AVX-512 and Xeon Emerald Rapids."
)
SAMPLE = f"**This is a sample page.** {REFERENCE} Your first run of `./run_all.sh` replaces it with your page."


def write(home: Path = HOME) -> None:
    """Write `home`/results.md and the pages in `home`/reference."""
    folder = home / "reference"
    records, studies = journal.read(journal.paths(HOME / "reference")), published.load()
    own = [record for record in records if record.infrastructure == MACHINE]
    others = [record for record in records if record.infrastructure != MACHINE]
    report.write(own, studies, others=others, page=home / "results.md", folder=folder, sample=SAMPLE)
    results = Results(table.read(folder / "rows.csv"), studies, MACHINE)
    report.write_pages(results, page=folder / "results.md", folder=folder, sample=REFERENCE)


if __name__ == "__main__":
    write()
