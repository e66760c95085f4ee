"""The tutorials, the readme and the pages for newcomers: their commands do and print what is shown.

A block whose fence has `title="NAME"` is a file, and is written. A line of a console block that begins with `$ ` is a
command; they are called one after the other. One that ends with `# exit code N` must end with that code, and one with
`# in another terminal` is started beside the others. The lines after a command are in its output, in that order; `…`
stands for anything. What `python` and `cat` print is shown completely, unless a line has `…`: a step that ran again
is a line too many.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import ROOT, environment, name_of

PAGES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/tutorials/*.md")),
    ROOT
    / "docs/howto/coming-from-dbos.md",  # those from Temporal and Prefect show the same, see test_coming_from.py
    ROOT / "docs/howto/coming-from-langgraph.md",
]
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "-- a command --"
_SMALLER = {"ten-thousand-files": {"10_000": "300", "05000.txt": "00150.txt"}}
"""What is replaced in a page, so that its test is quick."""
_AS_IN_A_TERMINAL = {"PYTHONUNBUFFERED": "1"}
"""What programs print is there before they are killed."""


def text_of(page: Path) -> str:
    text = page.read_text("utf-8")
    for large, small in _SMALLER.get(page.stem, {}).items():
        text = text.replace(large, small)
    return text


def files_of(text: str) -> dict[str, str]:
    """The files that a page shows, by their names."""
    titles = ((re.fullmatch(r'title="([\w./-]+)"', more), block) for _, more, block in _BLOCK.findall(text))
    return {title[1]: block for title, block in titles if title is not None}


def steps_of(text: str) -> list[tuple[str, list[str]]]:
    """The commands that a page shows, each with the lines that it prints."""
    found: list[tuple[str, list[str]]] = []
    for kind, _, block in _BLOCK.findall(text):
        for line in block.splitlines() if kind == "console" else ():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.strip():
                found[-1][1].append(line)
    return found


def script(commands: list[str]) -> str:
    """The commands as a script that ends with the first that ends otherwise than shown."""
    lines = ["trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for command in commands:
        code = re.search(r"# exit code (\d+)$", command)
        call = f"{command} &" if command.endswith("# in another terminal") else command
        call = call.replace("# in another terminal", "")
        lines += [f"echo '{_MARK}'", call, f"test $? = {code[1] if code else 0} || exit 1"]
    return "\n".join(lines) + "\n"


def missing(shown: list[str], printed: str) -> list[str]:
    """The first shown line that is not printed after those before it, if there is one."""
    rest = printed.splitlines()
    for line in shown:
        pattern = ".*".join(map(re.escape, line.split("…")))
        places = [number for number, each in enumerate(rest) if re.fullmatch(pattern, each.rstrip())]
        if not places:
            return [line]
        rest = rest[places[0] + 1 :]
    return []


@pytest.mark.parametrize("page", [page for page in PAGES if steps_of(text_of(page))], ids=name_of)
def test_the_commands_of_a_tutorial_do_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = text_of(page)
    for name, content in files_of(text).items():
        (tmp_path / name).write_text(content, "utf-8")
    steps = steps_of(text)

    done = subprocess.run(
        ["bash", "-c", script([command for command, _ in steps])],
        cwd=tmp_path,
        env=environment()
        | {"PATH": f"{Path(sys.executable).parent}:{environment()['PATH']}", **_AS_IN_A_TERMINAL},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )

    printed = done.stdout.split(f"{_MARK}\n")[1:]
    assert done.returncode == 0 and len(printed) == len(steps), done.stdout
    for (command, shown), part in zip(steps, printed, strict=True):
        assert missing(shown, part) == [], f"$ {command}\n{part}"
        if shown and re.search(r"(^| )(python|cat) ", command) and "…" not in "".join(shown):
            assert [line for line in part.splitlines() if "Killed" not in line] == shown, (
                f"$ {command}\n{part}"
            )


def test_a_shown_line_that_is_not_printed_is_found() -> None:
    assert missing(["a…c", "d"], "x\nabc\nb\nd\n") == []
    assert missing(["d", "a…c"], "abc\nd\n") == ["a…c"]
    assert script(["run # exit code 4"]).splitlines()[-1] == "test $? = 4 || exit 1"
