"""The coverage that the whole suite must reach, and the check that fails the suite below it.

It holds when the whole suite is run with `--cov`; a part of the suite is measured but not judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

LINES_AT_LEAST = 92.0
"""Percent of the package's lines."""

CORE_AT_LEAST = 95.0
"""Percent of the lines and branches of the core taken together."""

CORE = ("holdfast/engine/", "holdfast/journal/")


def shortfalls(files: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is below its mark in a coverage report's `files`, in words; empty if nothing is."""
    everything = [entry["summary"] for entry in files.values()]
    core = [
        entry["summary"]
        for path, entry in files.items()
        if any(part in Path(path).as_posix() for part in CORE)
    ]
    found = []
    lines = _percent(everything, "covered_lines", "num_statements")
    if lines < LINES_AT_LEAST:
        found.append(f"line coverage of the package is {lines:.2f} %, below {LINES_AT_LEAST:g} %")
    both = _percent(core, "covered_lines", "num_statements", "covered_branches", "num_branches")
    if both < CORE_AT_LEAST:
        found.append(
            f"line and branch coverage of engine and journal is {both:.2f} %, below {CORE_AT_LEAST:g} %"
        )
    return found


def _percent(summaries: list[Mapping[str, int]], *names: str) -> float:
    """Covered over all, where `names` alternate between the two; nothing measured is nothing covered."""
    covered = sum(summary[name] for summary in summaries for name in names[::2])
    everything = sum(summary[name] for summary in summaries for name in names[1::2])
    return 100.0 * covered / everything if everything else 0.0


def is_whole_suite(config: pytest.Config) -> bool:
    """Whether nothing was left out: no paths, no selection."""
    option = config.option
    chosen = option.keyword or option.markexpr or option.deselect or getattr(option, "lf", False)
    return not chosen and config.args_source is not pytest.Config.ArgsSource.ARGS


def judge(session: pytest.Session) -> None:
    """Fail a whole suite that passed but was measured to cover too little. For `pytest_sessionfinish`."""
    config = session.config
    if hasattr(config, "workerinput") or not config.pluginmanager.has_plugin("_cov"):
        return
    if config.option.no_cov or session.exitstatus != pytest.ExitCode.OK or not is_whole_suite(config):
        return
    problems = shortfalls(_report(config.rootpath))
    if problems:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        for problem in problems:
            reporter.write_line(f"FAILED coverage: {problem}", red=True)


def _report(root: Path) -> dict[str, Any]:
    measured = coverage.Coverage(config_file=str(root / "pyproject.toml"), data_file=str(root / ".coverage"))
    measured.load()
    path = root / ".coverage.json"
    measured.json_report(outfile=str(path))
    files: dict[str, Any] = json.loads(path.read_text("utf-8"))["files"]
    return files
