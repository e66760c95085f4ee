"""The pytest plugin: fixtures that kill workflows everywhere and skip time, and the options that go with them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.stores.base import Store
    from holdfast.testing.crashing import CrashReport
    from holdfast.testing.time_skipping import SkippedTime

# Nothing of Holdfast is imported here: every pytest run of everybody who has it installed loads this module.

pytest.register_assert_rewrite("holdfast.testing.contract")

_counts_key: pytest.StashKey[Counter[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "workflows that are killed and resumed")
    group.addoption(
        "--crash-everywhere",
        action="store_true",
        help="the crash_everywhere fixture kills real processes, at every boundary, and those that resume once more: "
        "no sampling, no simulation",
    )
    group.addoption(
        "--crash-mode",
        choices=("fast", "process"),
        default=None,
        help="how the crash_everywhere fixture crashes a workflow: simulated within this process (fast, the default) "
        "or with SIGKILL (process)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--crash-everywhere") and config.getoption("--crash-mode") == "fast":
        raise pytest.UsageError("--crash-everywhere really kills: it does not go with --crash-mode=fast")
    config.stash[_counts_key] = Counter()


@pytest.fixture
def crash_everywhere(request: pytest.FixtureRequest, tmp_path: Any) -> Callable[..., CrashReport]:
    """`holdfast.testing.crash_everywhere`, as fast or as thorough as the command line says.

    By default crashes are simulated within this process. `--crash-mode=process` kills real processes, and
    `--crash-everywhere` does so at every boundary, however many there are, and kills those that resume too. What a
    call says itself holds.
    """
    from holdfast.testing import crashing

    config = request.config
    everywhere = config.getoption("--crash-everywhere")
    defaults: dict[str, Any] = {
        "mode": "process" if everywhere else config.getoption("--crash-mode") or "fast",
        "folder": tmp_path,
    }
    if everywhere:
        defaults |= {"limit": None, "kill_resumes": True}
    counts = config.stash[_counts_key]

    @functools.wraps(crashing.crash_everywhere)
    def crash_and_count(workflow: Any, inputs: Any = None, **options: Any) -> CrashReport:
        __tracebackhide__ = True
        try:
            report = crashing.crash_everywhere(workflow, inputs, **{**defaults, **options})
        except crashing.CrashFailure as failure:
            _count(counts, failure.report)
            raise
        _count(counts, report)
        return report

    return crash_and_count


def _count(counts: Counter[str], report: CrashReport) -> None:
    counts["tests"] += 1
    counts[f"in {report.mode}"] += 1
    for name in ("boundaries", "tried", "kills", "resumes"):
        counts[name] += getattr(report, name)
    undisturbed = sum(each.boundary is None for each in report.breaks)
    counts["breaks"] += len(report.breaks) - undisturbed
    counts["breaks by itself"] += undisturbed


@pytest.fixture
def holdfast_store(tmp_path: Any) -> Iterator[Store]:
    """A new SQLite store in the folder of the test, closed after it."""
    from holdfast.stores import open_store

    store = open_store(f"sqlite:///{tmp_path / 'holdfast.db'}")
    yield store
    store.close()


@pytest.fixture
def skipping_time() -> Iterator[SkippedTime]:
    """A clock; sleeps, retries and timeouts of this test's runs pass at once. See `holdfast.testing.skipping_time`."""
    from holdfast.testing.time_skipping import skipping_time as skip

    with skip() as clock:
        yield clock


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[Any]:
    """Let a check of the store contract that fails say what a store promises."""
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        promise = pyfuncitem.function.__doc__
        if promise and getattr(pyfuncitem.cls, "is_store_contract", False):
            promised = f"What a store promises: {' '.join(promise.split())}"
            if isinstance(error, pytest.fail.Exception):
                error.msg = f"{error.msg}\n{promised}"
            else:
                error.add_note(promised)
        raise


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        counts = session.config.stash[_counts_key]
        output["holdfast_crashes"] = dict(counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add up what a worker of pytest-xdist counted."""
    counts: Counter[str] = node.config.stash[_counts_key]
    counts.update(getattr(node, "workeroutput", {}).get("holdfast_crashes", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    counts = config.stash[_counts_key]
    if not counts["tests"]:
        return
    how = (
        "really killed"
        if not counts["in fast"]
        else "simulated"
        if not counts["in process"]
        else "partly simulated"
    )
    broken = ""
    if counts["breaks"]:
        broken = f"; {_counted(counts['breaks'], 'boundary breaks', 'boundaries break')}"
    if counts["breaks by itself"]:
        broken += f"; {_counted(counts['breaks by itself'], 'test breaks', 'tests break')} without any crash"
    hint = "" if not counts["in fast"] else "; --crash-everywhere really kills"
    terminalreporter.write_line(
        f"holdfast: {_counted(counts['tests'], 'crash test', 'crash tests')}, {counts['tried']} of "
        f"{_counted(counts['boundaries'], 'boundary', 'boundaries')}, "
        f"{_counted(counts['kills'], 'crash', 'crashes')} ({how}), "
        f"{_counted(counts['resumes'], 'resume', 'resumes')}{broken}{hint}"
    )


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} {one if number == 1 else several}"
