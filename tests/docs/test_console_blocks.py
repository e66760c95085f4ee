"""The commands that how-to pages show: pasted one after the other into a new folder, all of them work.

Of a page, the YAML blocks that begin with `# NAME` are written to that file, its Python blocks are run, and then the
lines of its console blocks that begin with `$ `. What is to be called in another terminal is started beside the others.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, environment, script_of

PAGES = {
    "docs/howto/workflow-files.md": "",
    "docs/howto/time-travel.md": "program",
    "docs/howto/fleet.md": "server",
}
"""The pages, and what their commands need before: the page's Python blocks, or a PostgreSQL server."""

_BLOCK = re.compile(r"^```(yaml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ELSEWHERE = "# in another terminal"


def files_of(text: str) -> dict[str, str]:
    """The files that a page shows, by their names."""
    found = {}
    for kind, block in _BLOCK.findall(text):
        name = re.match(r"# ([\w.-]+)\n", block)
        if kind == "yaml" and name is not None:
            found[name[1]] = block
    return found


def commands_of(text: str) -> list[str]:
    """The commands that a page shows, in their order."""
    blocks = (block for kind, block in _BLOCK.findall(text) if kind == "console")
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def script(commands: list[str]) -> str:
    """The commands as a script that ends with the first that fails, and stops what it started beside them."""
    lines = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT"]
    for command in commands:
        lines += [f"echo '$' {command!r}"]
        lines += [f"{command.partition(_ELSEWHERE)[0]} &" if _ELSEWHERE in command else command]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_work_as_they_are_written(
    page: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text, needs = (ROOT / page).read_text("utf-8"), PAGES[page]
    env = environment() | {"PATH": f"{Path(sys.executable).parent}:{environment()['PATH']}"}
    if needs == "server":
        env["HOLDFAST_STORE"] = request.getfixturevalue("postgres_url")
    for name, content in files_of(text).items():
        (tmp_path / name).write_text(content, "utf-8")
    if needs == "program":
        subprocess.run(
            [sys.executable, "-c", script_of(ROOT / page)], cwd=tmp_path, env=env, check=True, timeout=100
        )

    done = subprocess.run(
        ["bash", "-c", script(commands_of(text))],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert done.returncode == 0 and len(commands_of(text)) > 2, done.stdout + done.stderr
