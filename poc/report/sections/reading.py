"""How to read the page, and where the rest is."""

from __future__ import annotations

from poc.report.page import Results, Section


def section(results: Results) -> Section:
    """The signs that the tables use."""
    lines = [
        "**Bold**: measured on the machine at hand, the one that measured last. Linked: published by a study, as "
        "printed, one run each without a spread. Other rows: measured on the machine they name.",
        "samples/s: median of n takes, each a run of its own, with the least and the most of them. A star: other "
        "processes took part of the machine in every take.",
        "Total batch = batch per device x devices. Closed division: network, optimizer and images as the study had "
        "them, the rate apart. Open: the optimizer and the images' crops may differ.",
        "Accuracy is on CIFAR-10's 10,000 test images after the last epoch. `cifar10 (jpeg)` copies were used where "
        "the originals were not to be had.",
    ]
    return Section("How to read this", ("\n".join(f"- {line}" for line in lines),))
