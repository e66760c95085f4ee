"""`file` and `json_state`: confined, atomic, bounded, and safe to repeat after a crash."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import ExecutionError
from holdfast.workflows.folders import Folder, read_beneath
from tests.workflows.workshop import Workshop


@pytest.fixture
def here(shop: Workshop) -> Path:
    return shop.folder


def steps(*written: str) -> str:
    return "steps:\n" + "".join(f"  - {each}\n" for each in written)


def test_files_are_created_edited_and_read(shop: Workshop, here: Path) -> None:
    """R2.3: CreateFile, EditFile and ReadFiles as `file: {create|edit|read}`."""
    output = shop.output(
        steps(
            "{name: made, file: {create: notes/a.txt, content: 'Hello {{ inputs.who }}, hello'}}",
            "{name: changed, file: {edit: notes/a.txt, changes: [{replace: 'Ada,', with: 'Ada!'}, {append: ' *'}]}}",
            "{name: every, file: {edit: notes/a.txt, changes: [{replace: 'll', with: 'LL', all: true}]}}",
            "{name: data, file: {create: notes/b.json, content: {n: 1}}}",
            "{name: one, file: {read: notes/a.txt}}",
            "{name: json, file: {read: notes/b.json, output: json}}",
            "{name: all, file: {read: ['notes/*', steps.py]}}",
        ).replace("steps:", "  inputs: {who: {default: Ada}}\nsteps:", 1)
        + "output: {one: '{{ steps.one.output }}', json: '{{ steps.json.output.n }}', made: '{{ steps.made.output }}', "
        "all: '{{ steps.all.output.keys() | list }}'}\n"
    )

    assert output["one"] == (here / "notes/a.txt").read_text() == "HeLLo Ada! heLLo *"
    assert output["json"] == 1
    assert output["made"] == {"path": "notes/a.txt", "bytes": 16, "changed": True}
    assert output["all"] == ["notes/a.txt", "notes/b.json", "steps.py"]
    assert [each.name for each in (here / "notes").iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "link/x", "link", ".."])
@pytest.mark.parametrize("verb", ["create", "edit", "read", "json"])
def test_no_path_leads_out_of_the_folder(
    shop: Workshop, here: Path, tmp_path_factory: pytest.TempPathFactory, path: str, verb: str
) -> None:
    """R2.3: neither as text of the file nor as a value, and no symbolic link does."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x").write_text("secret")
    (here / "link").symlink_to(outside)
    does = {
        "create": "file: {create: '{{ inputs.path }}', content: y}",
        "edit": "file: {edit: '{{ inputs.path }}', changes: [{append: y}]}",
        "read": "file: {read: '{{ inputs.path }}'}",
        "json": "json_state: {merge: '{{ inputs.path }}', state: {y: 1}}",
    }[verb]

    error = shop.error(f"  inputs: {{path: {{}}}}\nsteps:\n  - {{name: x, {does}}}\n", {"path": path})

    assert "folder" in error or "symbolic link" in error or "not a file" in error or "directory" in error
    assert (outside / "x").read_text() == "secret" and [*outside.iterdir()] == [outside / "x"]


def test_a_file_may_be_outside_if_the_step_says_so(
    shop: Workshop, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    shop.run(steps(f"{{name: x, file: {{create: '{outside}/made/x', content: y, outside: true}}}}"))

    assert (outside / "made/x").read_text() == "y"


TOUCHES = {
    "create": "file: {create: '{{ inputs.path }}', content: y",
    "edit": "file: {edit: '{{ inputs.path }}', changes: [{append: y}]",
    "read": "file: {read: '{{ inputs.path }}'",
    "write": "json_state: {write: '{{ inputs.path }}', state: {y: 1}",
    "merge": "json_state: {merge: '{{ inputs.path }}', state: {y: 1}",
    "save": "checkpoint: {save: '{{ inputs.path }}'",
    "load": "checkpoint: {load: '{{ inputs.path }}'",
    "sql": "sql: {url: 'sqlite:///{{ inputs.path }}', query: 'DELETE FROM entries'",
}
"""What steps do with a file, up to their last field."""


def touch(shop: Workshop, verb: str, path: str, more: str = "") -> str:
    """Return the error of a run whose step uses the file at a path."""
    flow = shop.load(f"  inputs: {{path: {{}}}}\nsteps:\n  - {{name: x, {TOUCHES[verb]}{more}}}}}\n")
    app = flow.open(shop.url)
    with contextlib.closing(app.store), pytest.raises(ExecutionError) as caught:
        app.invoke(flow.begin({"path": path}), config=flow.config())
    return str(caught.value)


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("verb", TOUCHES)
def test_no_step_uses_a_store_of_runs(
    shop: Workshop, here: Path, tmp_path_factory: pytest.TempPathFactory, verb: str
) -> None:
    """Neither the store of the run itself, nor one that is closed, nor what is beside it, nor one outside."""
    closed = tmp_path_factory.mktemp("closed") / "mine.db"
    for url in (f"sqlite:///{closed}", f"file:{here / 'kept'}"):
        app = shop.load("steps: [{name: a, set: {n: 1}}]").open(url)
        with contextlib.closing(app.store):
            app.invoke({"inputs": {}}, run_id="kept")
    shutil.copy(closed, here / "copy.db")
    (here / "link.db").symlink_to("copy.db")
    held = everything(here / "kept"), closed.read_bytes()

    inside = ["runs.db", "runs.db-wal", "runs.db-shm", "copy.db", "copy.db-wal"]
    inside += ["kept/kept/journal", "kept/kept/snapshots/1", "kept/new/journal", "kept/.keys/x"]
    for path in inside:
        error = touch(shop, verb, path)
        assert "belongs to a Holdfast store" in error and path in error and "outside" not in error
    for path in (str(closed), f"{closed}-wal", str(here / "link.db")):
        assert "belongs to a Holdfast store" in touch(shop, verb, path, ", outside: true")
    for more in ("", ", outside: true"):
        assert "folder .holdfast" in touch(shop, verb, "a/.holdfast/runs.db", more)

    assert (everything(here / "kept"), closed.read_bytes()) == held and not (here / "a").exists()
    assert (here / "copy.db").read_bytes() == closed.read_bytes()
    with contextlib.closing(shop.open().store) as store:
        assert len(store.runs()) == len(inside) + 5


def test_a_store_is_known_before_its_mark_leaves_the_wal(
    shop: Workshop, here: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    app = shop.load("steps: [{name: a, set: {n: 1}}]").open(f"sqlite:///{folder / 'a.db'}")
    with contextlib.closing(app.store):
        app.invoke({"inputs": {}})
        for end in ("", "-wal"):
            # As a crash leaves it: another process has no lock of it, and nothing is in the file itself.
            shutil.copy(folder / f"a.db{end}", here / f"a.db{end}")
    assert (here / "a.db").read_bytes()[68:72] == bytes(4)

    assert "belongs to a Holdfast store" in touch(shop, "create", "a.db")
    assert "belongs to a Holdfast store" in touch(shop, "create", "a.db-wal")


def test_other_databases_and_folders_of_keys_are_no_stores(shop: Workshop, here: Path) -> None:
    (here / ".keys").mkdir()
    (here / ".keys/mine").write_text("secret")
    (here / "journal").write_text("Dear diary")
    with contextlib.closing(sqlite3.connect(here / "other.db")) as other:
        other.execute("CREATE TABLE t (x)")

    shop.run(
        steps(
            "{name: a, sql: {url: 'sqlite:///other.db', query: INSERT INTO t VALUES (1)}}",
            "{name: b, file: {create: other.db, content: y}}",
            "{name: c, file: {edit: journal, changes: [{append: y}]}}",
        )
    )

    assert (here / "other.db").read_text() == "y" and (here / "journal").read_text() == "Dear diaryy"


def test_a_file_that_is_not_to_be_overwritten_may_be_written_once_more(shop: Workshop, here: Path) -> None:
    """An interrupted step finds its own file, which is no other."""
    (here / "x").write_text("same")
    assert shop.step(steps("{name: x, file: {create: x, content: same, overwrite: false}}"))["output"] == {
        "path": "x",
        "bytes": 4,
        "changed": False,
    }
    (here / "x").write_text("other")
    (here / "runs.db").unlink()

    assert "there is another file" in shop.error(
        steps("{name: x, file: {create: x, content: same, overwrite: false}}")
    )


def test_permissions_of_a_file_stay(shop: Workshop, here: Path) -> None:
    (here / "x.sh").write_text("a")
    (here / "x.sh").chmod(0o750)

    shop.run(steps("{name: x, file: {edit: x.sh, changes: [{append: b}]}}"))

    assert (here / "x.sh").stat().st_mode & 0o777 == 0o750 and (here / "x.sh").read_text() == "ab"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("file: {edit: a, changes: [{replace: x, with: y}]}", "there is no such text in it"),
        ("file: {edit: a, changes: [{replace: b, with: y}]}", "it is there 2 times"),
        ("file: {edit: a, changes: [{append: cccccccc}], max_bytes: 9}", "more than max_bytes"),
        ("file: {create: c, content: '12345', max_bytes: 4}", "more than max_bytes"),
        ("file: {read: a, max_bytes: 1}", "larger than 1 bytes"),
        ("file: {read: ['a', 'a*'], max_bytes: 5}", "larger than 5 bytes in all"),
        ("file: {read: nothing}", "No such file"),
        ("file: {read: '*.txt'}", "patterns are given in a list: read: ['*.txt']"),
        ("file: {read: binary}", "byte 1 of it is not UTF-8"),
        ("file: {read: a, output: json}", "file.read: 'a'"),
        ("json_state: {read: nothing}", "No such file"),
        ("json_state: {read: a}", "json_state.read"),
        ("json_state: {merge: folder, state: {}}", "not a file"),
    ],
)
def test_a_failure_names_the_field_and_changes_nothing(
    shop: Workshop, here: Path, does: str, words: str
) -> None:
    (here / "a").write_text("abb")
    (here / "folder").mkdir()
    (here / "binary").write_bytes(b"\xff\xfe")

    assert words in shop.error(steps(f"{{name: x, {does}}}"))
    assert (here / "a").read_text() == "abb" and not (here / "c").exists()


def test_json_state_is_read_written_and_merged(shop: Workshop, here: Path) -> None:
    """R2.3: ReadJSONState, WriteJSONState and MergeJSONState as `json_state: {read|write|merge}`."""
    output = shop.output(
        steps(
            "{name: none, json_state: {read: state/s.json, default: {count: 0}}}",
            "{name: put, json_state: {write: state/s.json, state: {count: 1, deep: {a: 1, b: [1]}}}}",
            "{name: more, json_state: {merge: state/s.json, state: "
            "{deep: {b: [2], c: '{{ steps.put.output.count + 1 }}'}}}}",
            "{name: all, json_state: {read: state/s.json}}",
        )
        + "output: {none: '{{ steps.none.output }}', all: '{{ steps.all.output }}'}\n"
    )

    assert output["none"] == {"count": 0}
    assert output["all"] == {"count": 1, "deep": {"a": 1, "b": [2], "c": 2}}
    assert json.loads((here / "state/s.json").read_text()) == output["all"]


def _merge_often(folder: str, name: str) -> None:
    shop = Workshop.__new__(Workshop)
    shop.folder, shop.env = Path(folder), dict(os.environ)
    flow = shop.load()
    app = flow.open("memory://")
    for number in range(20):
        app.invoke(flow.begin({"name": f"{name}{number}"}), config=flow.config())


def test_writers_in_several_processes_wait_for_each_other(shop: Workshop, here: Path) -> None:
    shop.load(
        "  inputs: {name: {}}\nsteps:\n"
        "  - {name: x, json_state: {merge: s.json, state: {by: '{{ {inputs.name: 1} }}'}}}\n"
    )
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_merge_often, args=(str(here), name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)

    held = json.loads((here / "s.json").read_text())
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(held["by"]) == 40


EDIT = steps("{name: x, file: {edit: a, changes: [{replace: n, with: nn, all: true}]}}")


def test_an_edit_that_was_interrupted_after_its_write_is_not_made_twice(
    shop: Workshop, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").write_text("n")
    write = Folder.write

    def killed(self: Folder, name: str, data: bytes) -> None:
        write(self, name, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Folder, "write", killed)
        shop.run(EDIT)
    assert (here / "a").read_text() == "nn"

    assert shop.resume().state["x"]["status"] == "completed"
    assert (here / "a").read_text() == "nn"


def test_an_edit_that_was_interrupted_before_its_write_is_made(
    shop: Workshop, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").write_text("n")

    def killed(self: Folder, name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Folder, "write", killed)
        shop.run(EDIT)
    shop.resume()

    assert (here / "a").read_text() == "nn"


def test_an_interrupted_edit_of_a_file_that_somebody_changed_is_not_guessed(
    shop: Workshop, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "a").write_text("n")

    def killed(self: Folder, name: str, data: bytes) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Folder, "write", killed)
        shop.run(EDIT)
    (here / "a").write_text("n and more")

    with pytest.raises(Exception, match="something else changed it"):
        shop.resume()
    assert (here / "a").read_text() == "n and more"


def test_a_crash_in_the_middle_of_a_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("old")

    def broken(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with Folder(tmp_path, ()) as folder, pytest.raises(OSError, match="No space"):
        folder.write("a", b"new")

    assert [each.name for each in tmp_path.iterdir()] == ["a"] and (tmp_path / "a").read_text() == "old"


def test_a_file_is_read_only_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below/a").write_text("x")
    (tmp_path / "b").symlink_to(tmp_path / "below")

    assert read_beneath(tmp_path, "below/a", 10) == b"x"
    with pytest.raises(ValueError, match="symbolic link"):
        read_beneath(tmp_path, "b/a", 10)
    with pytest.raises(ValueError, match="not a file"):
        read_beneath(tmp_path, "below", 10)
