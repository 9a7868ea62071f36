"""How to read the page, and where the rest is."""

from __future__ import annotations

from poc.report.measurements import WAITED
from poc.report.page import Results, Section
from poc.report.tables import is_copy


def section(results: Results) -> Section:
    """The signs that the tables use."""
    lines = [
        "**Bold**: measured on the machine at hand, the one that measured last, searches aside. Linked: published by a "
        "study, as printed, one run each without a spread. Other rows: measured on the machine they name.",
        "samples/s: median of n takes, each a run of its own, with the least and the most of them. A take may be "
        "seconds or a whole training long. Takes may lie hours apart, and a machine that is shared has faster hours "
        "and slower ones. A star: other processes took part of the machine in every take. A dagger: the "
        f"takes waited for batches more than {WAITED:.0%} of the time; in which records that was the suite's fault is "
        "in docs/design.md.",
        "Total batch = batch per device x devices. Closed division: network, optimizer and crops as the study had "
        "them, but perhaps for the rate. Open: trained in any other way; another network is named. Muon 0.05, "
        "0.5: a rate of 0.05 for convolutions, of 0.5 for all else.",
        "Virtual devices: one real device played all of them in turn, for the accuracy of their total batch; their "
        "speed is in no table.",
        "Accuracy is on CIFAR-10's 10,000 test images after the last epoch; held-out: on 5,000 training images that a "
        "search keeps back."
        + " It was measured on copies compressed as JPEG, for want of the originals: the study's own script, too, "
        "stays below what it printed on them ([How it was measured][method])." * any(map(is_copy, results.rows)),
    ]
    return Section("How to read this", ("\n".join(f"- {line}" for line in lines),))
