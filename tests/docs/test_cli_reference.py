"""The reference of the command line: a page per command, fresh, and its JSON keys are the true ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.main import ENTRIES
from tests.cli.in_process import caller, three_runs

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference" / "cli"
THEIRS = {"n", "log", "enum"}
"""Keys of the runs' own data."""


def make(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kept = ("PATH", "HOME", "LANG")
    environment = {
        key: value for key, value in os.environ.items() if key in kept or key.startswith("COVERAGE_")
    }
    return subprocess.run(
        [sys.executable, root / "docs" / "make_cli_reference.py", *words],
        capture_output=True,
        text=True,
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
    )


def test_the_reference_is_fresh() -> None:
    done = make(ROOT, "--check")

    assert done.returncode == 0, done.stderr


def test_a_stale_page_and_one_too_many_are_found_and_made_good(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "reference" / "cli", tmp_path / "docs" / "reference" / "cli")
    shutil.copy(ROOT / "docs" / "make_cli_reference.py", tmp_path / "docs")
    folder = tmp_path / "docs" / "reference" / "cli"
    (folder / "runs.md").write_text("old")
    (folder / "gone.md").write_text("old")

    done = make(tmp_path, "--check")
    assert done.returncode == 1 and "gone.md, runs.md not up to date" in done.stderr

    assert make(tmp_path).returncode == 0
    assert {path.name for path in folder.iterdir()} == {path.name for path in PAGES.iterdir()}
    assert make(tmp_path, "--check").returncode == 0


def test_every_command_has_a_page_with_its_options() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} == {"README", *ENTRIES}
    assert "`--older-than TIME`" in (PAGES / "checkpoints.md").read_text()
    for name in ENTRIES:
        assert f"# holdfast {name}\n" in (PAGES / f"{name}.md").read_text()


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (["runs"], "runs"),
        (["show", "asked"], "show"),
        (["show", "bad"], "show"),
        (["runs", "status", "asked"], "runs"),
        (["checkpoints", "list"], "checkpoints"),
        (["checkpoints", "prune", "--keep", "1", "--dry-run"], "checkpoints"),
        (["runs", "cost", "good"], "runs"),
        (["runs", "cost", "--by", "workflow"], "runs"),
        (["runs", "tag", "good", "fine"], "runs"),
        (["runs", "note", "good"], "runs"),
        (["checkpoints", "keep", "good"], "checkpoints"),
        (["history", "good"], "history"),
        (["history", "good", "--tree"], "history"),
        (["fork", "good@1"], "fork"),
        (["runs", "rollback", "good@1"], "runs"),
        (["diff", "good"], "diff"),
        (["diff", "bad", "asked@0"], "diff"),
        (["workflow", "inspect", "good"], "workflow"),
        (["doctor"], "doctor"),
        (["store", "stats"], "store"),
        (["store", "migrate", "--check"], "store"),
    ],
)
def test_every_key_that_is_printed_is_documented(
    words: list[str], page: str, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    three_runs(sqlite_url)
    text = (PAGES / f"{page}.md").read_text()
    documented = set(re.findall(r"`([a-z_]+)`", text)) | THEIRS

    data = caller(capsys)(*words, "--json", "--store", sqlite_url).json
    if "packages" in data.get("facts", ()):
        data["facts"]["packages"] = {}  # They have the names of distributions.

    assert keys_of(data) - documented == set()


def keys_of(data: object) -> set[str]:
    if isinstance(data, dict):
        return set(data).union(*map(keys_of, data.values()))
    return set().union(*map(keys_of, data)) if isinstance(data, list) else set()
