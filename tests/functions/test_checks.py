"""Warnings of what differs when a workflow's function runs again."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import random
import subprocess
import sys
import time
import urllib.request
import uuid
from datetime import datetime
from pathlib import Path
from random import choice
from typing import Any

from holdfast import step, workflow
from holdfast.functions import check_function, now


@step
def allowed(number: int) -> float:
    return time.time() + number


def helper() -> float:
    return random.random()


def uses(body: Any) -> list[str]:
    return [f"{warning.what}: {warning.why}" for warning in check_function(workflow(body))]


async def everything(items: list[int]) -> Any:
    found: list[Any] = [time.time(), datetime.now(), dt.date.today(), choice(items), uuid.uuid4()]
    found += [os.urandom(3), urllib.request.urlopen("http://localhost"), helper(), random.shuffle(items)]
    await asyncio.sleep(1)
    time.sleep(1)
    with open("file") as file:  # noqa: PTH123
        found.append(file.read())
    for item in {1, 2}:
        found.append(item)
    return [*found, [item + 1 for item in set(items)], input()]


ALL = {1, 2}


@workflow
def child() -> float:
    return time.perf_counter()


def hidden(items: list[int]) -> Any:
    import http.client as web
    from time import monotonic

    chosen = set(items)
    chosen |= {3}
    found: list[Any] = [list(chosen), tuple(ALL), allowed.map(chosen | ALL), child()]
    for item in chosen:
        found.append(item)  # noqa: PERF402
    found += [web.HTTPConnection("localhost"), monotonic(), os.environ["HOME"], os.environ.get("HOME")]
    return [*found, Path("a").read_text(), os.listdir()]  # noqa: PTH208


def aside(items: list[int]) -> Any:
    clock, again = time.time, random.random
    where = os.environ
    tick = time.monotonic
    found: list[Any] = [tick(), os.getpid(), hash("a"), id(items), dict(os.environ.items())]
    for name in os.environ:
        found.append(name.lower())
    for name in where:
        found.append(name.lower())
    named = set(items)
    found += [allowed.map(named), *Path("a").glob("*"), *Path("a").rglob("*"), *Path("a").iterdir()]
    again = len
    return [*found, clock, again(items)]


def test_processes_paths_the_environment_and_other_names_are_found() -> None:
    found = sorted(line.partition(":")[0] for line in uses(aside))
    calls = ("tick", "os.getpid", "hash", "id", "os.environ.items")
    paths = (f"Path('a').{name}" for name in ("glob", "rglob", "iterdir"))
    loops = (f"a loop over {name}" for name in ("os.environ", "where", "named"))
    assert found == sorted([*(f"{name}(…)" for name in (*calls, *paths)), *loops])


def harmless(items: list[int]) -> Any:
    first = allowed(len(items)), now()
    few = {1, 2}
    few_sorted = sorted(few)
    return [
        first,
        few_sorted,
        len(few),
        sorted(set(items)),
        [item for item in items if item in {1, 2}],
        Path("a") / "b",
    ]


def test_what_differs_is_found_with_its_place() -> None:
    found = uses(everything)
    expected = [
        *(
            "time.time(…)",
            "datetime.now(…)",
            "dt.date.today(…)",
            "choice(…)",
            "uuid.uuid4(…)",
            "os.urandom(…)",
        ),
        *("urllib.request.urlopen(…)", "random.random(…)", "random.shuffle(…)", "asyncio.sleep(…)"),
        *("time.sleep(…)", "open(…)", "a loop over {1, 2}", "a loop over set(items)", "input(…)"),
    ]
    assert sorted(line.partition(":")[0] for line in found) == sorted(expected)
    assert any("use holdfast.now()" in line for line in found)
    warning = workflow(everything).validate()[0]
    lines = Path(warning.file).read_text().splitlines()
    assert "random.random()" in lines[warning.line - 1] and str(warning).startswith(
        f"{warning.file}:{warning.line}:"
    )


def test_what_is_imported_inside_sets_in_variables_and_called_workflows_are_found() -> None:
    found = [line.partition(":")[0] for line in uses(hidden)]
    loops = ("chosen", "ALL", "chosen | ALL", "chosen")
    calls = ("web.HTTPConnection", "monotonic", "os.environ.get", "Path('a').read_text", "os.listdir")
    expected = [*(f"a loop over {each}" for each in loops), "os.environ['HOME']", "time.perf_counter(…)"]
    assert sorted(found) == sorted([*expected, *(f"{each}(…)" for each in calls)])


def test_steps_and_what_stays_the_same_are_left_alone() -> None:
    assert uses(harmless) == []


def test_a_function_without_source_has_no_warnings() -> None:
    scope: dict[str, Any] = {"time": time, "__name__": "made"}
    exec("def made():\n    return time.time()\n", scope)
    assert uses(scope["made"]) == []


def test_the_command_line_checks_functions(tmp_path: Path) -> None:
    """Functions: `holdfast validate MODULE:NAME` warns of what differs when a workflow runs again."""
    (tmp_path / "jobs.py").write_text(
        "import time\nfrom holdfast import StateGraph, step, workflow\n"
        "@workflow\ndef late() -> float:\n    return time.time()\n"
        "@step\ndef collect() -> int:\n    return 1\n"
        "graph = StateGraph(dict).add_node('a', lambda state: {}).add_edge('__start__', 'a')\n"
    )

    def validate(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast", "validate", *args]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)

    found = validate("jobs:late")
    assert found.returncode == 0 and "jobs.py:5: workflow 'late' has time.time(…)" in found.stdout
    assert validate("jobs.py:late", "--strict").returncode == 2
    assert "valid, 1 step" in validate("jobs:graph").stdout
    missing = validate("jobs:missing")
    assert missing.returncode == 2 and "there is no 'missing' in 'jobs'" in missing.stderr
    part = validate("jobs:collect")
    assert (
        part.returncode == 2
        and "jobs:collect: 'collect' is a step; name the workflow function" in part.stderr
    )
    assert not [done for done in (missing, part) if "--app" in done.stderr]
