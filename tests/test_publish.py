"""A published folder: the pages and the journal of one machine, and nothing that tells whose it was."""

import dataclasses
import getpass
import json
import re
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from poc.cli import main
from poc.publish import publish, scrubber
from poc.records import journal, last_run
from poc.records.last_run import LastRun
from poc.records.record import Record
from poc.report import table
from poc.values import UserError
from tests.builders import add, record_of

USER, HOST = "ada-lovelace", "engine-7"


@pytest.fixture
def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user with a name, on a host with a name."""
    home = tmp_path / "homes" / USER
    for variable, setting in (("HOME", str(home)), ("USER", USER), ("LOGNAME", USER)):
        monkeypatch.setenv(variable, setting)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HOST}.example.org")
    return home


def write_pages(records: Sequence[Record], page: Path, folder: Path) -> None:
    page.write_text(f"{[record.reason for record in records]}")


def test_what_tells_whose_it_was_is_replaced(owner: Path) -> None:
    scrub = scrubber()
    for text, clean in {
        f"OSError: {owner}/data/train.rec: no such file": "OSError: [path]: no such file",
        "No such file: '/home/somebody-else/x y'": "No such file: '[path]'",
        "file:///home/bob/x.pt and /data/set=3/foo": "file://[path] and [path]",
        "\"/mnt/Ada's disk/x y.jpg\", '/root/a b'": "\"[path]\", '[path]'",
        "g++ -I/home/bob/inc -L/opt/x -I/usr/include": "g++ -I[path] -L[path] -I/usr/include",
        "/usr/lib:/root/.cache:/root, denied": "/usr/lib:[path]:[path], denied",
        "no room in\n/mnt/lovelace-lab/cache (12.5 GB)": "no room in\n[path] (12.5 GB)",
        f"host {HOST} (10.0.0.3): killed; {HOST}.example.org is down": "host [host]: killed; [host] is down",
        f"connect to 10.0.0.3:9091 as {USER}": "connect to [address]:9091 as [user]",
        "/opt/conda/lib/libjemalloc.so.2:/opt/x/libm.so": "[path]/libjemalloc.so.2:[path]/libm.so",
        "data: /mnt/Ada L/train/x y/IMG 1.jpg is a truncated JPEG": "data: [path] is a truncated JPEG",
        "data: /mnt/Ada L/train.rec, record 7: it is": "data: [path], record 7: it is",
    }.items():
        assert scrub(text) == clean
    for text in (
        "RuntimeError: 3/4 of samples/s, see https://example.org/a/b and ./run_all.sh",
        "needs libcudart.so in /usr/local/cuda/lib64 or /dev/shm, driver 535.104.05",
        "lr: 'square root' of N/A; MXNet 1.9.1",
    ):
        assert scrub(text) == text


def test_nothing_private_is_in_a_published_folder(owner: Path, tmp_path: Path) -> None:
    private = f"MXNetError: {owner}/data/cifar10_train.rec of {USER} on {HOST}: /mnt/data is full"
    notes = [{"step": 3, "why": private}]
    photo = "data: /mnt/Acme GmbH/x 1/train/Ada L/IMG 1.jpg is no image"
    own = {"data": {"name": "folder", "path": "/mnt/Acme GmbH/x 1"}, "model": "mine.py:net", "model_hash": "abc"}
    own.update(model_folder=f"{owner}/nets", cost={"parameters": 9, "forward_multiply_adds": 99, "activations": 9})
    of_own = record_of(run=own, reason=photo)
    add(
        tmp_path / "results",
        record_of(outcome="failed", reason=private, unsaved=notes, resumed=notes, run={"recipe": USER}),
        record_of(environment={"LD_PRELOAD": f"{owner}/lib/libtcmalloc.so"}, framework_choice=private),
        of_own,
        record_of(infrastructure="test-machine", started="2026-11-21T09:00:00+00:00"),
    )
    fields = {"recipes": (f"{owner}/mine.py", "quick"), "runs": ("0123456789",), "skipped": {private: 2}}
    last = LastRun(**fields, machine="test machine", started="2026-11-21T10:00:00+00:00")
    last_run.write(tmp_path / "results", last)
    folder, (_, left_out) = publish(tmp_path / "results", tmp_path / "out", write_pages)
    assert list((tmp_path / "out").iterdir()) == [folder]
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert len(texts) == 4
    for secret in (str(owner), USER, HOST, "/mnt", "GmbH", "Ada L", "IMG"):
        assert not any(secret in text for text in texts)
    assert "of other machines: test-machine (--machine)" in left_out
    failed, completed, scrubbed = journal.read(journal.paths(folder))
    assert failed.reason == "MXNetError: [path] of [user] on [host]: [path] is full"
    assert completed.run == record_of().run
    assert (scrubbed.reason, scrubbed.run.model_folder) == ("data: [path] is no image", "")
    assert (scrubbed.run.id, scrubbed.run.cost) == (of_own.run.id, of_own.run.cost)
    published = last_run.read(folder)
    assert published is not None
    assert published.recipes == ("mine.py", "quick")
    other, _ = publish(tmp_path / "results", tmp_path / "out", write_pages, "test-machine")
    assert other.name == "test-machine_2026-11-21"
    assert len({folder, other, *(tmp_path / "out").iterdir()}) == 2
    assert last_run.read(other) is None


def test_only_a_folder_that_publish_made_is_replaced(tmp_path: Path) -> None:
    record = record_of()
    add(tmp_path / "results", record)
    target = tmp_path / f"{journal.folder(tmp_path, record.infrastructure).name}_{record.started[:10]}"
    target.mkdir()

    def is_refused(words: str, results: str = "results", machine: str = "") -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            publish(tmp_path / results, tmp_path, write_pages, machine)

    (target / "mine").write_text("precious")
    is_refused(str(target))
    assert (target / "mine").read_text() == "precious"
    (target / journal.MARK).write_text(json.dumps({"machine": "test machine"}))
    is_refused(str(target))
    target.rename(tmp_path / "mine")
    for _ in range(2):
        publish(tmp_path / "results", tmp_path, write_pages)
        assert len(journal.read(journal.paths(target))) == 1
    for file in ("NOTES.md", ".git/config"):
        (target / file).parent.mkdir(exist_ok=True)
        (target / file).write_text("precious")
        is_refused(file.split("/")[0])
        assert (target / file).read_text() == "precious"
        (target / file).unlink()
    (target / ".git").rmdir()
    add(target, record_of(started=f"{record.started[:10]}T22:00:00+00:00"))  # a run with --results of that folder
    is_refused(str(target))
    assert len(journal.read(journal.paths(target))) == 2
    add(tmp_path / "another", dataclasses.replace(record, started=f"{record.started[:10]}T23:00:00+00:00"))
    is_refused(str(target), "another")  # what somebody else published on that day
    is_refused("nowhere", "nowhere")
    is_refused("no such machine", machine="no such machine")


def test_a_damaged_last_run_is_none(tmp_path: Path) -> None:
    fields = {"recipes": ("a",), "runs": ("1", "2"), "skipped": {"why": 3}, "quick": True}
    last = LastRun(**fields, machine="m", started=last_run.now())
    last_run.write(tmp_path, last)
    assert last_run.read(tmp_path) == last
    for damaged in ("", "{}", "[1]", '{"recipes": 3}'):
        (tmp_path / last_run.FILE).write_text(damaged)
        assert last_run.read(tmp_path) is None


def test_the_command_makes_a_folder_whose_links_stay_inside(
    owner: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, output = tmp_path / "results", tmp_path / "output"
    failed = record_of(outcome="failed", reason=f"OSError: {owner}/x is gone", run={"learning_rate": 0.2})
    add(results, record_of(), failed)
    price = ["--price", f"{record_of().infrastructure}=12.5"]
    assert main(["publish", "--results", str(results), "--output", str(output), *price]) == 0
    (folder,) = output.iterdir()
    assert str(folder) in capsys.readouterr().out
    targets = {
        (page.parent / address).resolve()
        for page in folder.glob("*.md")
        for addresses in re.findall(r"\]\(([^)#]+)[^)]*\)|^\[[^]]+\]: (\S+)", page.read_text(), re.MULTILINE)
        for address in addresses
        if address and "://" not in address
    }
    assert len(targets) > 3
    assert all(target.exists() and folder in target.parents for target in targets)
    assert {"rows.csv", "explorer.html", "results.md", journal.MARK} <= {path.name for path in folder.iterdir()}
    assert not any(USER in path.read_text() for path in folder.rglob("*") if path.is_file())
    rows = table.read(folder / "rows.csv")
    assert {*rows[rows.origin == "measured"].dollars_per_hour} == {12.5}
    # A published folder is a folder of results itself.
    assert main(["show", record_of().run.id, "--results", str(folder)]) == 0
