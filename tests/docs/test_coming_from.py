"""The programs for other systems on the pages "Coming from …".

The programs for Holdfast on these pages run in test_tutorials.py. Of the others only DBOS is a part of the extra
`test`: it brings 3 packages (31 MB) that are not there anyway. LangGraph would bring 22 (50 MB), Prefect 63 (136 MB,
and an older python-dateutil and FastAPI), temporalio 4 (59 MB) and the need for a server that pip does not have. `make
peers` installs each in an environment of its own and runs all programs, in a minute and a half; here the other three
are parsed, and must import nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT

_spec = importlib.util.spec_from_file_location("try_peers", ROOT / "docs/try_peers.py")
assert _spec is not None and _spec.loader is not None
try_peers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(try_peers)

PEERS = sorted(try_peers.REQUIREMENTS)
PACKAGES = {"dbos": "dbos", "langgraph": "langgraph", "prefect": "prefect", "temporal": "temporalio"}


def test_every_page_is_tried() -> None:
    pages = {path.stem.removeprefix("coming-from-") for path in try_peers.PAGES.glob("coming-from-*")}

    assert pages == {*PEERS}


@pytest.mark.parametrize("peer", PEERS)
def test_a_program_for_another_system_is_python_and_imports_that_system(peer: str) -> None:
    tree = ast.parse(try_peers.program_of(peer))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.partition(".")[0] for name in imported} - sys.stdlib_module_names == {PACKAGES[peer]}


def after_of(peer: str) -> str:
    """The program for Holdfast, and the commands of its page."""
    text: str = try_peers.page_of(peer).partition('title="after.py"')[2]
    return text.partition("```")[0] + str(try_peers.calls_of(peer))


def test_three_pages_show_one_program_for_holdfast() -> None:
    assert after_of("dbos") == after_of("prefect") == after_of("temporal")


@pytest.mark.parametrize("peer", PEERS)
def test_both_programs_of_a_page_fetch_the_same_sources_and_are_called_in_the_same_way(peer: str) -> None:
    after = after_of(peer)

    for line in ('["ebb", "flood"]', "def fetch(", 'print("fetched", source)'):
        assert line in try_peers.program_of(peer) and line in after
    assert [crash for crash, _ in try_peers.calls_of(peer)] == ["flood", "", ""]


def test_the_program_for_dbos_does_what_its_page_shows() -> None:
    try_peers.try_program("dbos", sys.executable)


def test_a_program_that_prints_or_ends_otherwise_is_found(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "print('fetched ebb')"]

    try_peers._expect(tmp_path, program, "", ["fetched ebb"])
    with pytest.raises(try_peers.Wrong, match="instead of"):
        try_peers._expect(tmp_path, program, "", ["fetched flood"])
    with pytest.raises(try_peers.Wrong, match="ended with 0"):
        try_peers._expect(tmp_path, program, "flood", ["fetched ebb"])
