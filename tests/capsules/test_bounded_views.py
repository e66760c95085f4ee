"""Views of an untrusted run: the memory of all its values together is bounded, and omitted values are named."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import END, START, App, StateGraph, open_store
from holdfast.capsules import import_run
from holdfast.capsules.exports import lines_of
from holdfast.capsules.summary import inspect_capsule
from holdfast.engine.commands.inbox import MODIFY, Change, RunCommand, write_message
from holdfast.engine.time_travel.queries import compare_runs
from holdfast.errors import CodecError
from holdfast.journal.journal import Journal
from holdfast.state import standard_types as budget
from holdfast.state.codec import zstd
from holdfast.stores.base import Store
from holdfast.views.plain import ViewCodec
from holdfast.views.runs import run_view
from holdfast.views.timeline import timeline
from tests.capsules.samples import exported, forged
from tests.capsules.test_hostile_capsules import body, started
from tests.processes import unmeasured

MEGABYTE = 1_000_000
VALUES, PARTS = 40, 4_000
"""Each value needs 0.25 MB once it is read, all of them 10 MB and, as they are shown, twice that."""


def light(parts: int) -> bytes:
    """A stored list of empty lists: a byte each, and 64 once it is read."""
    return b"\x01\xdd" + parts.to_bytes(4, "big") + b"\x90" * parts


def values(parts: int = PARTS, count: int = VALUES) -> list[list[Any]]:
    """Changes that set so many keys, each to a value that alone is within its limit."""
    packed = zstd.compress(light(parts))
    return [[0, f"k{number}", 1, packed] for number in range(count)]


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_TOGETHER", MEGABYTE)


@pytest.fixture
def foreign(tmp_path: Path) -> Store:
    """A store with an imported run of many values."""
    path = forged(tmp_path / "bomb", [body(started(*values()))])
    assert path.stat().st_size < 5000
    store = open_store("memory://")
    import_run(store, path)
    return store


def peak_of(work: Callable[[], Any]) -> tuple[int, Any]:
    tracemalloc.start()
    try:
        found = work()
        return tracemalloc.get_traced_memory()[1], found
    finally:
        tracemalloc.stop()


def test_the_state_of_a_foreign_run_is_shown_as_far_as_its_values_fit_together(
    foreign: Store, little: None
) -> None:
    peak, shown = peak_of(lambda: run_view(Journal(foreign), "forged").as_json(state=True))

    left_out = [key for key, value in shown["state"].items() if isinstance(value, dict)]
    assert shown["state"]["k0"] == [[]] * PARTS
    assert len(shown["state"]) == VALUES and len(left_out) > VALUES - 5
    assert shown["state"]["k39"]["$type"] == "unread"
    assert "--key" in shown["state"]["k39"]["text"] and "4.0 KB" in shown["state"]["k39"]["text"]
    assert peak < 5 * MEGABYTE


def test_a_value_that_was_left_out_is_read_by_its_key(foreign: Store, little: None) -> None:
    view = run_view(Journal(foreign), "forged")
    view.as_json(state=True)

    with pytest.raises(CodecError, match="not read"):
        view.state["k39"]
    assert view.value("k39") == [[]] * PARTS
    with pytest.raises(CodecError, match="not read"):
        view.state["k38"]


def test_what_one_entry_tells_is_bounded(foreign: Store, little: None) -> None:
    peak, moments = peak_of(lambda: list(timeline(Journal(foreign), "forged")))

    told = moments[0].data["input"]
    assert told["k0"] == [[]] * PARTS and "not read" in told["k39"]
    assert peak < 5 * MEGABYTE


def test_lines_of_a_run_are_bounded_each(
    foreign: Store, little: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.capsules.exports.MOST_MEMORY", MEGABYTE)
    peak, lines = peak_of(lambda: [json.loads(line) for line in lines_of(Journal(foreign), "forged")])

    ops = next(line for line in lines if line.get("type") == "RunStarted")["ops"]
    assert ops[0]["value"] == [[]] * PARTS and "not read" in ops[39]["value"]["text"]
    assert peak < 5 * MEGABYTE


def grown(store: Store | str) -> App:
    """A workflow whose steps make many values, other ones in each run."""

    def make(name: str) -> Callable[[Any], Any]:
        return lambda state: {f"{name}{number}": [[]] * (PARTS + state["n"]) for number in range(10)}

    graph = StateGraph(dict, name="grown")
    for before, name in ((START, "a"), ("a", "b"), ("b", "c")):
        graph.add_node(name, make(name)).add_edge(before, name)
    return graph.add_edge("c", END).compile(store)


def test_comparing_two_runs_reads_no_more_than_fits_together(little: None) -> None:
    app = grown("memory://")
    for number in (1, 2):
        app.invoke({"n": number}, run_id=f"run-{number}")
    journal = Journal(app.store)

    peak, found = peak_of(lambda: compare_runs(journal, "run-1", "run-2"))

    assert "n" in found.state.after and len(found.state.not_compared) >= 28
    assert [step.result for step in found.differing] == [None] * 3
    assert all("not compared" in step.reason for step in found.differing)
    assert peak < 5 * MEGABYTE


def test_previews_of_steps_are_bounded_together_and_take_nothing_from_the_state(little: None) -> None:
    app = grown("memory://")
    app.invoke({"n": 1}, run_id="r")
    view = run_view(Journal(app.store), "r")

    previews = [step.preview() for step in view.steps]
    shown = view.as_json(state=True)["state"]

    assert sum("unread" in text or "not read" in text for text in previews) == len(previews)
    assert shown["n"] == 1 and shown["a0"] == [[]] * (PARTS + 1) and shown["c9"]["$type"] == "unread"


def test_commands_in_a_capsule_are_inspected_as_far_as_they_fit_together(
    tmp_path: Path, little: None
) -> None:
    app = grown("memory://")
    app.invoke({"n": 1}, run_id="r")
    for _ in range(VALUES):
        app.store.post("r", write_message(RunCommand(MODIFY, changes=(Change(("k",), light(PARTS)),))))
    path = exported(app.store, "r", tmp_path)

    peak, info = peak_of(lambda: inspect_capsule(path))

    assert len(info.inbox) == VALUES
    first, last = (info.inbox[place]["changes"][0]["value"] for place in (0, -1))
    assert first == [[]] * PARTS and last == light(PARTS).hex()
    assert peak < 6 * MEGABYTE


@pytest.mark.parametrize(
    "part",
    [b"\x90", b"\x80", b"\x00", b"\xc0", b"\xa1x", b"\xcc\xff", b"\xcb" + bytes(8), b"\x81\xa1x\x90"],
    ids=bytes.hex,
)
def test_values_of_any_parts_need_no_more_together_than_is_allowed(part: bytes) -> None:
    reader, kept = ViewCodec(2 * MEGABYTE), []
    raw = b"\x01\xdd" + (2000).to_bytes(4, "big") + part * 2000

    def read() -> int:
        for number in range(1000):
            try:
                kept.append(reader.decode(raw))
            except CodecError:
                return number
        raise AssertionError("it was never too much")

    peak, number = peak_of(read)

    assert number > 1 and peak < 6 * MEGABYTE


def test_a_large_text_counts_as_what_it_is() -> None:
    reader = ViewCodec(4 * MEGABYTE)
    text = "x" * 1_200_000
    raw = reader.encode(text)

    assert [reader.decode(raw) == text for _ in range(3)] == [True] * 3
    with pytest.raises(CodecError, match=r"1\.2 MB, not read"):
        reader.decode(raw)


def test_measuring_many_values_that_do_not_fit_takes_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_MEASURED", 5000)
    allowance = budget.Allowance(100_000)
    looked_at = list[int]()
    measure = budget._measure

    def counted(raw: bytes, most: int, most_parts: int) -> tuple[int, int]:
        found = measure(raw, most, most_parts)
        looked_at.append(found[1])
        return found

    monkeypatch.setattr(budget, "_measure", counted)
    for _ in range(100):
        assert not allowance.takes(b"\x01\xdd\x00\x00\x4e\x20" + bytes(20_000))
    assert allowance.takes(b"\x01\x05")
    assert sum(looked_at) < 6000


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (550_000_000, 550_000_000))
from holdfast.__main__ import main
sys.exit(main())
"""


def test_a_few_kilobytes_are_shown_within_a_limit_of_memory(tmp_path: Path) -> None:
    """The 25 values of 400,000 empty lists each would need 0.8 GB."""
    path = forged(tmp_path / "bomb", [body(started(*values(400_000, 25)))])
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    store = open_store(url)
    import_run(store, path)
    store.close()

    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "show", "forged", "--store", url],
        env=unmeasured(),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert 'inputs       {"k0": [[], []' in done.stdout
