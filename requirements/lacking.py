"""Print the packages that this project needs (pyproject.toml) and this Python lacks, or has in another version.

They are named with their versions, a line each. An environment that make_environment.sh has made runs this.
"""

import importlib.metadata
import pathlib
import re

from pip._vendor.packaging.requirements import Requirement


def lacking(requirements):
    """Yield those of `requirements` that are not satisfied, and those of the installed ones' own."""
    waiting, seen = list(map(Requirement, requirements)), set()
    while waiting:
        requirement = waiting.pop()
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            version = None
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            yield f"{requirement.name}{requirement.specifier}"
        else:
            waiting += map(Requirement, importlib.metadata.requires(requirement.name) or ())


if __name__ == "__main__":
    project = pathlib.Path(__file__).resolve().parents[1] / "pyproject.toml"
    (dependencies,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project.read_text(), re.DOTALL | re.MULTILINE)
    print(*sorted(lacking(re.findall(r'"(.+?)"', dependencies))), sep="\n")
