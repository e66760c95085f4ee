"""Runs hostile expressions and templates in a process with little memory and little time."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from tests.processes import unmeasured

MEMORY = 700 * 2**20
SECONDS = 90


def outcomes(language: str, sources: list[str], scope: str = "{}") -> list[str]:
    """What became of each source: `refused`, `done`, or the name of an error nobody foresaw.

    The process is killed if one of them takes too long; it fails if one of them takes too much memory.
    """
    folder = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workflows.language.attacks", language, scope],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        cwd=folder,
        env=unmeasured(),
        timeout=100,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stdout} {done.stderr[-2000:]}"
    return [str(outcome) for outcome in json.loads(done.stdout)]


def shared(depth: int) -> list[Any]:
    """A small list of lists in which every level holds the next one twice: enormous once written out."""
    value: list[Any] = ["x"]
    for _ in range(depth):
        value = [value, value]
    return value


def _scope(name: str) -> dict[str, Any]:
    if name == "{}":
        return {}
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return {
        "one": shared(60),
        "other": shared(60),
        "endless": endless,
        "deep": deep,
        "number": 7**100_000,
        "long": "a" * 900_000,
        "same": ["b" * 900_000] * 900_000,
        "items": {"items": 1, "__class__": 2, "keys": 3},
    }


def _run(language: str, source: str, scope: dict[str, Any]) -> str:
    from holdfast.workflows.language.templates import compile_expression, compile_template

    try:
        if language == "expression":
            compile_expression(source).value(scope)
        else:
            compile_template(source).render(scope)
    except HoldfastError:
        return "refused"
    except BaseException as error:
        return type(error).__name__
    return "done"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    scope = _scope(sys.argv[2])
    sources = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    print(json.dumps([_run(sys.argv[1], source, scope) for source in sources]))


if __name__ == "__main__":
    main()
