from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from millstream.checkpoints.chain import Chain
from millstream.checkpoints.garbage import Garbage, garbage, remove
from millstream.checkpoints.lineage import Lineage
from millstream.checkpoints.location import open_checkpoint
from millstream.checkpoints.records import DATA, delta_key
from millstream.checkpoints.verification import Findings, check_epoch
from millstream.cli import main
from millstream.stores.registry import open_store
from millstream.stores.store import Store
from tests.checkpoints.spark_log_folders import write_logs
from tests.checkpoints.written import Job, Writer, count, counting
from tests.work.running import SLOTS, job_of

NAMES = [f"key{number}" for number in range(20)]


@pytest.fixture(params=["log", "files"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint of three epochs, of two jobs, by two incarnations."""
    place = tmp_path / "checkpoint"
    place.mkdir()
    url = f"{request.param}://{place}/store"
    if request.param != "log":
        (place / "store.url").write_text(url)
    store = open_store(url, "writer")
    run = Writer(store, {**counting(), "pairs": Job(job_of(count))})
    run.commit({"count": [(name, 1) for name in NAMES], "pairs": [(("a", 1), 5), (("b", 2), 6)]})
    run.commit({"count": [(NAMES[0], None), (NAMES[1], 4), ("new", 7)]})
    run.base()
    run.claim()
    run.commit({"count": [(NAMES[2], 1)]})
    store.close()
    return place


@pytest.fixture
def say(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run an action on the checkpoint, and give what it printed."""

    def run(action: str, *arguments: object, status: int = 0) -> str:
        asked = ["checkpoint", action, str(folder), *map(str, arguments)]
        assert main(asked) == status, capsys.readouterr()
        reported = capsys.readouterr()
        return reported.out if status != 2 else reported.err

    return run


@pytest.fixture
def ask(say: Callable[..., str]) -> Callable[..., Any]:
    def run(action: str, *arguments: object, status: int = 0) -> Any:
        return json.loads(say(action, *arguments, "--json", status=status))

    return run


Say = Callable[..., str]
Ask = Callable[..., Any]


def test_ls_lists_epochs_and_incarnations(say: Say, ask: Ask) -> None:
    found = ask("ls")

    assert found["workflow"] == "flow" and found["jobs"] == ["count", "pairs"]
    assert [(e["epoch"], e["incarnation"], e["parent"]) for e in found["epochs"]] == [
        (0, 1, -1),
        (1, 1, 0),
        (2, 2, 1),
    ]
    assert [(e["published"], e["complete"]) for e in found["epochs"]] == [
        (True, True),
        (True, True),
        (None, True),
    ]
    assert [e["records"] for e in found["epochs"]] == [4, 2, 2]
    assert [(one["incarnation"], one["after"]) for one in found["incarnations"]] == [
        (1, -1),
        (2, 1),
    ]
    reported = say("ls")
    assert "workflow flow, 16 slots, jobs: count, pairs" in reported
    assert len(reported.splitlines()) == 10


def test_ls_reports_a_checkpoint_without_a_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_store(f"files://{tmp_path}/s", "writer").close()

    assert main(["checkpoint", "ls", f"files://{tmp_path}/s"]) == 0
    assert "no epoch has been committed yet" in capsys.readouterr().out


def test_show_prints_a_manifest(say: Say, ask: Ask) -> None:
    assert ask("show")["epoch"] == 2
    found = ask("show", 0)

    assert found["epoch"] == 0 and found["workflow"]["jobs"][0]["key_type"] == "string"
    assert [delta["slots"] for delta in found["deltas"]] == [[0, 8], [8, 16]] * 2
    reported = say("show", 2)
    assert "epoch 2 (after 1), try 0 of incarnation 2" in reported
    assert "base.node.1.0-16" in reported and "0 to 7" in reported


def test_get_prints_a_value(say: Say, ask: Ask) -> None:
    assert say("get", "count", "key1") == "{'n': 5}\n"
    assert ask("get", "count", "key1", "--epoch", 0)["value"] == {"n": 1}
    assert ask("get", "pairs", '["a", 1]') == {
        "job": "pairs",
        "epoch": 2,
        "key": ["a", 1],
        "value": {"n": 5},
    }
    assert say("get", "pairs", "('b', 2)") == "{'n': 6}\n"


def test_unknown_epochs_jobs_and_keys_are_errors_that_list_the_known_ones(say: Say) -> None:
    assert "keys such as 'key" in say("get", "count", "nobody", status=2)
    assert "the jobs are count, pairs" in say("get", "cuont", "key1", status=2)
    assert "the epochs are 0, 1, 2" in say("show", 7, status=2)
    assert "the epochs are 0, 1, 2" in say("verify", "--epoch", 7, status=2)
    assert "the epochs are 0, 1, 2" in say("diff", 0, 3, status=2)
    assert "is not a key of type tuple of (str, int)" in say("get", "pairs", "a", status=2)


def test_a_folder_without_a_checkpoint_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["checkpoint", "ls", str(tmp_path)]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err


def test_diff_counts_and_lists_keys(say: Say, ask: Ask) -> None:
    found, pairs = ask("diff", 0, 2)

    assert [found[kind] for kind in ("added", "removed", "changed")] == [1, 1, 2]
    assert pairs["unchanged"] == 2
    reported = say("diff", 0, 2, "--job", "count")
    assert "  - 'key0': {'n': 1}" in reported
    assert "  ~ 'key1': {'n': 1} -> {'n': 5}" in reported
    assert "  + 'new': {'n': 7}" in reported
    assert "pairs" not in reported
    assert "->" not in say("diff", 0, 2, "--limit", 0)


def test_export_writes_a_file_for_each_job(tmp_path: Path, say: Say, ask: Ask) -> None:
    found = ask("export", "--to", tmp_path / "out")

    assert [(file["job"], file["rows"]) for file in found] == [("count", 20), ("pairs", 2)]
    rows = pq.read_table(tmp_path / "out" / "count.parquet").to_pylist()
    assert {"key": "key1", "n": 5} in rows
    say("export", "--to", tmp_path / "old", "--epoch", 0, "--job", "count", "--format", "parquet")
    assert [file.name for file in (tmp_path / "old").iterdir()] == ["count.parquet"]
    assert {"key": "key1", "n": 1} in pq.read_table(tmp_path / "old").to_pylist()
    assert "is there already" in say("export", "--to", tmp_path / "old", status=2)


def test_verify_reports_an_intact_checkpoint(say: Say, ask: Ask) -> None:
    assert say("verify").endswith("newest complete epoch: 2\nintact: yes\n")
    assert ask("verify", "--epoch", 1)["newest_complete"] == 1


def test_verify_finds_damage_with_file_and_offset(folder: Path, say: Say, ask: Ask) -> None:
    key = max(ask("show", 2)["deltas"], key=lambda delta: delta["bytes"])["key"]
    store = open_checkpoint(folder)
    value = store.get([key])[key]
    store.close()
    victim = next(f for f in folder.rglob("*") if f.is_file() and value in f.read_bytes())
    data = victim.read_bytes()
    at = data.index(value) + 5
    victim.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])

    found = ask("verify", status=1)

    (damage,) = found["records"]
    assert (damage["key"], damage["place"]) == (key, str(victim))
    assert damage["offset"] <= at
    assert f"{victim}, offset {damage['offset']}" in say("verify", status=1)
    assert (found["ok"], found["newest_complete"]) == (False, 1)
    assert ask("verify", "--epoch", 1)["ok"] and not ask("verify", "--epoch", 2, status=1)["ok"]


def test_verify_finds_missing_manifests_and_half_written_epochs(
    folder: Path, say: Say, ask: Ask
) -> None:
    store = open_checkpoint(folder)
    store.delete(["chain/000000000002"])
    store.put({delta_key(3, 2, 0, "1.count", range(SLOTS), "node"): b"x"})
    store.close()

    found = ask("verify", status=1)

    assert found["chain"][0]["key"] == "chain/000000000002"
    assert [e["status"] for e in found["epochs"]] == ["complete", "complete"]
    reported = say("verify", status=1)
    assert "epoch 3 of incarnation 2 is half-written" in reported
    assert "newest complete epoch: 2" in reported and reported.endswith("intact: no\n")


def test_restore_explains_then_claims(folder: Path, say: Say, ask: Ask) -> None:
    reported = say("restore", 0, status=1)
    assert "epochs 1 to 2 are withdrawn" in reported and "--yes" in reported
    assert ask("ls")["epochs"][-1]["epoch"] == 2

    found = ask("restore", 0, "--yes")

    assert found == {"epoch": 0, "withdrawn": [1, 2], "done": True, "incarnation": 3}
    store = open_checkpoint(folder)
    assert Chain(store).read().epoch == 0
    store.close()
    assert ask("get", "count", "key1")["value"] == {"n": 1}


def test_restore_rejects_an_epoch_that_is_not_complete(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_checkpoint(folder)
    store.delete([store.scan(f"{DATA}000000000000")[0]])
    store.close()

    assert main(["checkpoint", "restore", str(folder), "1", "--yes"]) == 1
    assert "epoch 1 cannot be restored" in capsys.readouterr().err
    assert main(["checkpoint", "restore", str(folder), "2", "--yes"]) == 0  # it has a base


def test_restore_rejects_an_epoch_of_which_spark_has_no_offsets(
    folder: Path, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    write_logs(folder / "spark", 1, range(1, 3))

    assert main(["checkpoint", "restore", str(folder), "0", "--yes"]) == 1
    assert "has only epochs 1 to 2" in capsys.readouterr().err
    assert ask("ls")["epochs"][-1]["epoch"] == 2
    assert ask("restore", 1, "--yes")["done"]


def test_restore_rejects_where_spark_has_no_offsets_at_all(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "spark").mkdir()

    assert main(["checkpoint", "restore", str(folder), "0", "--yes"]) == 1
    assert "is empty" in capsys.readouterr().err


def test_without_sparks_logs_restore_accepts_only_epochs_that_are_surely_retained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"files://{tmp_path}/store"
    store = open_store(url, "writer")
    run = Writer(store)
    for _ in range(104):
        run.commit([])

    assert main(["checkpoint", "restore", url, "3", "--yes"]) == 1
    assert "offsets of epochs before 4" in capsys.readouterr().err
    assert Chain(store).read().epoch == 103
    assert main(["checkpoint", "restore", url, "5", "--yes"]) == 0
    # Spark had come to epoch 103 all the same.
    assert main(["checkpoint", "restore", url, "3", "--yes"]) == 1
    assert main(["checkpoint", "restore", url, "4", "--yes"]) == 0
    store.close()


def test_restore_yields_to_a_running_workflow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_while_it_runs(store: Store, lineage: Lineage, epoch: int) -> Findings:
        assert Chain(store).claim(lineage, lineage.epoch, 0, "host", 8) is not None
        return check_epoch(store, lineage, epoch)

    monkeypatch.setattr("millstream.cli.checkpoint.check_epoch", check_while_it_runs)

    assert main(["checkpoint", "restore", str(folder), "0", "--yes"]) == 1
    assert "a workflow runs on" in capsys.readouterr().err
    with closing(open_checkpoint(folder)) as store:
        assert Chain(store).read().epoch == 2


def test_gc_deletes_what_the_retained_epochs_do_not_need(say: Say, ask: Ask) -> None:
    before = ask("gc", "--retain", 1, "--dry-run")
    assert not before["done"] and before["links"] == 4
    assert len(ask("ls")["epochs"]) == 3

    assert ask("gc", "--retain", 1) == {**before, "done": True}

    assert [e["epoch"] for e in ask("ls")["epochs"]] == [2]
    assert say("verify").endswith("intact: yes\n")
    assert say("get", "count", "key1") == "{'n': 5}\n"
    assert "at least one epoch" in say("gc", "--retain", 0, status=2)


def test_gc_retains_every_epoch_by_default(ask: Ask) -> None:
    ask("gc")

    assert [e["complete"] for e in ask("ls")["epochs"]] == [True, True, True]


def test_gc_rejects_a_chain_with_a_gap_until_a_run_has_resumed_after_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_checkpoint(folder)
    store.delete(["chain/000000000004"])
    store.put_if_absent("chain/000000000005", b"nonsense")
    store.close()

    assert main(["checkpoint", "gc", str(folder)]) == 1
    assert "chain/000000000004" in capsys.readouterr().err

    assert main(["checkpoint", "restore", str(folder), "1", "--yes"]) == 0
    assert main(["checkpoint", "gc", str(folder)]) == 0


def gc_while(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Lineage], object]) -> None:
    """Let something happen while gc finds out what is not needed."""

    def meanwhile(lineage: Lineage, keys: list[str], retain: int | None) -> Garbage:
        happens(lineage)
        return garbage(lineage, keys, retain)

    monkeypatch.setattr("millstream.cli.checkpoint.garbage", meanwhile)


def test_gc_deletes_nothing_that_a_run_has_just_restored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(open_checkpoint(folder)) as store:
        keys = store.scan(DATA)
        gc_while(monkeypatch, lambda seen: Chain(store).claim(seen, 0, 0, "host", 8))

        assert main(["checkpoint", "gc", str(folder), "--retain", "1"]) == 1
        assert "has just claimed it" in capsys.readouterr().err
        assert store.scan(DATA) == keys and Chain(store).read().epoch == 0


def test_gc_works_during_commits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(open_checkpoint(folder)) as store:

        def go_on(seen: Lineage) -> None:
            assert seen.newest is not None
            Chain(store).commit(seen, replace(seen.newest, epoch=3, parent=2, deltas=()))

        gc_while(monkeypatch, go_on)

        assert main(["checkpoint", "gc", str(folder), "--retain", "1"]) == 0
        assert [found.epoch for found in Chain(store).read().manifests] == [2, 3]


def test_gc_rejects_a_chain_whose_newest_claim_resumes_from_a_missing_epoch(
    folder: Path, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    say("restore", 0, "--yes")
    with closing(open_checkpoint(folder)) as store:
        store.delete(["chain/000000000000", "chain/000000000001"])
        keys = store.scan()

        assert "manifest of epoch 0, from which incarnation 3 resumes" in say("verify", status=1)
        assert main(["checkpoint", "gc", str(folder)]) == 1
        assert "manifest of epoch 0" in capsys.readouterr().err
        assert store.scan() == keys


def test_restore_takes_its_claim_back_if_the_epoch_was_deleted_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check_while_it_is_deleted(store: Store, lineage: Lineage, epoch: int) -> Findings:
        found = check_epoch(store, lineage, epoch)
        remove(store, garbage(lineage, store.scan(DATA), 1))
        return found

    monkeypatch.setattr("millstream.cli.checkpoint.check_epoch", check_while_it_is_deleted)

    assert main(["checkpoint", "restore", str(folder), "0", "--yes"]) == 1
    assert "was deleted meanwhile" in capsys.readouterr().err
    with closing(open_checkpoint(folder)) as store:
        assert Chain(store).read().epoch == 2


def test_the_installed_command_needs_neither_spark_nor_java(folder: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("millstream"), "checkpoint", "get", folder, "count", "new"],
        capture_output=True,
        text=True,
        env={"PATH": "", "JAVA_HOME": ""},
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "{'n': 7}\n", "")


def test_no_action_loads_spark(folder: Path) -> None:
    code = (
        "import sys; from millstream.cli import main; "
        f"main(['checkpoint', 'verify', {str(folder)!r}]); "
        "sys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
