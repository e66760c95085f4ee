"""The pytest plugin, as those see it who have Holdfast installed: options, fixtures, the line at the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import unmeasured

SHOP = """
from typing import Any

from holdfast import END, START, StateGraph, clock
from holdfast.testing import record_effect


def shop(careful: bool) -> StateGraph:
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        record_effect("charge", ctx.idempotency_key if careful else None)
        return {"paid": True}

    graph = StateGraph(dict, name="shop")
    graph.add_node("pay", pay).add_edge(START, "pay").add_edge("pay", END)
    return graph
"""

CAREFUL = f"""{SHOP}

def test_careful(crash_everywhere, request) -> None:
    report = crash_everywhere(shop(True), {{}}, points=["before", "ran"])
    really = request.config.getoption("--crash-everywhere") or request.config.getoption("--crash-mode") == "process"
    assert report.mode == ("process" if really else "fast")


def test_the_call_has_the_last_word(crash_everywhere) -> None:
    assert crash_everywhere(shop(True), {{}}, mode="fast", limit=2).tried == 2


def test_time(skipping_time) -> None:
    before = clock.time()
    clock.sleep(86400)
    assert clock.time() - before >= 86400


def test_store(holdfast_store) -> None:
    assert shop(True).compile(holdfast_store).invoke({{}}).status == "completed"
    assert [run.status for run in holdfast_store.runs()] == ["completed"]
"""

CARELESS = """

def test_careless(crash_everywhere) -> None:
    crash_everywhere(shop(False), {})


def test_broken(crash_everywhere) -> None:
    graph = shop(True)
    graph.add_node("bad", lambda state: 1 / 0).add_edge("pay", "bad")
    crash_everywhere(graph, {})
"""


def run(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_shop.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
            "--rootdir",
            folder,
            *options,
            folder,
        ],
        cwd=folder,
        env=unmeasured(),
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_with_the_option_real_processes_are_killed_in_every_worker(tmp_path: Path) -> None:
    done = run(tmp_path, CAREFUL, "-n2", "--crash-everywhere")

    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "holdfast: 2 crash tests, 5 of 11 boundaries, 10 crashes (partly simulated), 10 resumes"
        in done.stdout
    )


def test_without_an_option_crashes_are_simulated_and_a_careless_workflow_is_told_what_to_change(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, CAREFUL + CARELESS, "--tb=short")

    assert done.returncode == 1 and "2 failed, 4 passed" in done.stdout, done.stdout
    assert "holdfast: 4 crash tests, 13 of 19 boundaries, 13 crashes (simulated), 13 resumes" in done.stdout
    assert "IT BREAKS if the process dies right after effect 1" in done.stdout
    assert (
        "idempotency_key=ctx.idempotency_key" in done.stdout
        and "boundaries break; 1 test breaks" in done.stdout
    )
    assert "1 test breaks without any crash; --crash-everywhere really kills" in done.stdout
    assert (
        "def crash_everywhere(" not in done.stdout and "crashing.py" not in done.stdout
    )  # Nothing of the kit.


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, CAREFUL, "--crash-everywhere", "--crash-mode=fast")

    assert done.returncode == 4 and "does not go with --crash-mode=fast" in done.stderr


def test_loading_the_plugin_loads_nothing_of_the_engine() -> None:
    program = (
        "import sys, holdfast.testing.plugin\n"
        "print(sorted(name for name in sys.modules if name.startswith('holdfast')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=unmeasured(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert (
        done.stdout.strip() == "['holdfast', 'holdfast.names', 'holdfast.testing', 'holdfast.testing.plugin']"
    )
