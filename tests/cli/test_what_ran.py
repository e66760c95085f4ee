"""`kept N, ran M` at the end of a command, in every way of continuing a run, compared with what really happened."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.processes import call, write

CHAIN = """
workflow: {name: w}
steps:
  - {name: a, shell: "echo a >> log"}
  - {name: b, shell: "echo b >> log"}
  - {name: c, shell: "echo c >> log; test -e ok"}
  - {name: d, shell: "echo d >> log"}
"""
KILLED = CHAIN.replace("test -e ok", "test -e ok || kill -9 $PPID")
STOPPED = CHAIN.replace("test -e ok", "test -e ok || { kill -INT $PPID; sleep 60; }")
ASKING = CHAIN.replace('{name: c, shell: "echo c >> log; test -e ok"}', '{name: c, ask: "Well?"}')
GATED = CHAIN.replace('; test -e ok"', '", interrupt: before').replace("d,", 'd, when: "false",')
LOOP = """
workflow: {name: w}
steps:
  - {name: a, shell: "echo a >> log"}
  - name: b
    shell: "echo b >> log; test $(grep -c b log) -ne 2 || test -e ok"
    routes: [{to: a, when: "steps.b.visits < 3"}, {to: c}]
  - {name: c, shell: "echo c >> log"}
"""
GROUP = """
workflow: {name: w}
steps:
  - {name: a, shell: "echo a >> log"}
  - name: both
    parallel:
      - {name: l, shell: "echo l >> log"}
      - {name: r, shell: "echo r >> log; sleep 0.3; test -e ok"}
  - {name: z, shell: "echo z >> log"}
"""
ITEMS = """
workflow: {name: w}
steps:
  - {name: a, shell: "echo a >> log"}
  - name: many
    for_each: {in: [1, 2, 3, 4], max_parallel: 1}
    shell: {run: "echo item$I >> log; test -e ok || test $I -lt 3", env: {I: "{{ item }}"}}
  - {name: z, shell: "echo z >> log"}
"""
SUB = CHAIN.replace("name: w", "name: sub")
NESTED = """
workflow: {name: w}
steps:
  - {name: first, shell: "echo first >> log"}
  - {name: inner, workflow: {file: sub.yaml}}
  - {name: z, shell: "echo z >> log"}
"""
NESTED_ITEMS = NESTED.replace("inner,", "inner, for_each: {in: [1, 2], max_parallel: 1},")

LATE = """
workflow: {name: w}
steps:
  - {name: first, shell: "echo first >> log"}
  - {name: inner, workflow: {file: sub.yaml}}
  - {name: each, for_each: {in: [1, 2]}, workflow: {file: sub.yaml}}
  - {name: many, for_each: {in: [1, 2, 3]}, shell: {run: "echo item$I >> log", env: {I: "{{ item }}"}}}
  - {name: both, parallel: [{name: l, shell: "echo l >> log"}, {name: r, shell: "echo r >> log"}]}
  - {name: again, while_loop: {condition: iteration < 2, steps: [{name: x, shell: "echo x >> log"}]}}
  - {name: last, shell: "echo last >> log; test -e ok"}
  - {name: z, shell: "echo z >> log"}
"""
ROUNDS = """
workflow: {name: w}
steps:
  - {name: many, for_each: {in: [1, 2]}, shell: {run: "echo item$I >> log", env: {I: "{{ item }}"}}}
  - {name: inner, workflow: {file: sub.yaml}}
  - name: last
    shell: "echo last >> log; test $(grep -c last log) -ne 3 || test -e ok"
    routes: [{to: many, when: "steps.last.visits < 3"}, {to: $end}]
"""
ROUND = "item1 item2 a c d"
EASY_SUB = SUB.replace("; test -e ok", "").replace("name: b,", 'name: b, when: "false",')
PARTS = "first a c d a c d a c d item1 item2 item3 l r x x"

COUNTS = re.compile(
    r"kept (\d+) steps?(?: and (\d+) items?)? \(.*saved\), ran (\d+) steps?(?: and (\d+) items?)?"
)


class Way(NamedTuple):
    """A way of continuing a run: the file, the command, and what of the run is kept, by the words in its log."""

    text: str
    command: str
    kept: str
    code: int = 1
    finished: bool = False
    """Whether the run is resumed to its end first."""
    more: int = 0
    """Steps that end and write nothing into the log: answered questions."""
    before: str = ""
    """A command that comes between."""
    sub: str = SUB
    """The sub-workflow."""


WAYS = {
    "after a failure": Way(CHAIN, "resume r", "a b"),
    "after a kill": Way(KILLED, "resume r", "a b", -9),
    "after an interrupt": Way(STOPPED, "resume r", "a b", 130),
    "after a pause, with an answer": Way(ASKING, "resume r --answer yes", "a b", 4, more=1),
    "past a gate, with a step whose condition does not hold": Way(GATED, "resume r", "a b", 4),
    "in a loop": Way(LOOP, "resume r", "a b a"),
    "with a skipped step": Way(CHAIN, "resume r", "a b", before="steps skip r c"),
    "from an older checkpoint": Way(CHAIN, "resume r@1", "a"),
    "rerun from a step": Way(CHAIN, "rerun r --from b", "a", finished=True),
    "rerun in place": Way(CHAIN, "rerun r --from c --in-place", "a b", finished=True),
    "fork and run": Way(CHAIN, "fork r@2 --run", "a b", finished=True),
    "a group with one member done": Way(GROUP, "resume r", "a l"),
    "a for-each with some items done": Way(ITEMS, "resume r", "a item1 item2"),
    "a sub-workflow in the middle": Way(NESTED, "resume r", "first a b"),
    "rerun of a whole sub-workflow": Way(NESTED, "rerun r --from inner", "first", finished=True),
    "from before a sub-workflow": Way(NESTED, "resume r@1", "first", finished=True),
    "items that are sub-workflows": Way(NESTED_ITEMS, "resume r", "first a b"),
    "after sub-workflows, items, a group and a loop": Way(LATE, "resume r", PARTS, sub=EASY_SUB),
    "rerun after all of these": Way(LATE, "rerun r --from z", f"{PARTS} last", finished=True, sub=EASY_SUB),
    "rerun in place after these": Way(
        LATE, "rerun r --from last --in-place", PARTS, finished=True, sub=EASY_SUB
    ),
    "fork after a group": Way(LATE, "fork r@both --run", PARTS[:-4], finished=True, sub=EASY_SUB),
    "in the third round": Way(ROUNDS, "resume r", f"{ROUND} last {ROUND} last {ROUND}", sub=EASY_SUB),
    "from the middle of a loop": Way(LATE, "resume r@x", PARTS, finished=True, sub=EASY_SUB),
}


@pytest.fixture
def ran(tmp_path: Path) -> Callable[[], Counter[str]]:
    """What happened since the last call, by the log that the steps write."""
    seen: list[str] = []

    def since() -> Counter[str]:
        words = (tmp_path / "log").read_text().split()
        new = words[len(seen) :]
        seen[:] = words
        return Counter(new)

    return since


def counted(words: Counter[str]) -> tuple[int, int]:
    items = sum(number for word, number in words.items() if word.startswith("item"))
    return words.total() - items, items


@pytest.mark.parametrize("name", WAYS)
def test_the_numbers_are_those_of_the_effects(
    name: str, tmp_path: Path, ran: Callable[[], Counter[str]]
) -> None:
    """S0.11, S1.15: what is kept does not run again, and the command says so."""
    way = WAYS[name]
    write(tmp_path, "w.yaml", way.text)
    write(tmp_path, "sub.yaml", way.sub)
    first = call(tmp_path, "run", "w.yaml", "--run-id", "r")
    assert first.returncode == way.code, first.stderr
    (tmp_path / "ok").touch()
    if way.finished:
        assert call(tmp_path, "resume", "r").returncode == 0
    if way.before:
        assert call(tmp_path, *way.before.split()).returncode == 0
    ran()

    done = call(tmp_path, *way.command.split())

    assert done.returncode == 0, done.stderr
    found = COUNTS.search(done.stdout)
    assert found is not None, done.stdout
    kept_steps, kept_items, steps, items = (int(number or 0) for number in found.groups())
    effects = counted(ran())
    assert (steps, items) == (effects[0] + way.more, effects[1]), done.stdout
    assert (kept_steps, kept_items) == counted(Counter(way.kept.split())), done.stdout


def test_json_has_the_same_numbers(tmp_path: Path, ran: Callable[[], Counter[str]]) -> None:
    write(tmp_path, "w.yaml", ITEMS)
    failed = json.loads(call(tmp_path, "run", "w.yaml", "--run-id", "r", "--json").stdout)
    (tmp_path / "ok").touch()
    ran()
    done = json.loads(call(tmp_path, "resume", "r", "--json").stdout)

    assert (failed["stats"]["steps_run"], failed["stats"]["items_run"]) == (1, 2)
    assert (done["stats"]["steps_run"], done["stats"]["items_run"]) == counted(ran())


def test_a_plan_that_would_be_refused_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, "w.yaml", CHAIN)
    call(tmp_path, "run", "w.yaml", "--run-id", "r")
    assert call(tmp_path, "resume", "r", "--plan").returncode == 0
    write(tmp_path, "w.yaml", CHAIN.replace("name: c", "name: renamed"))

    plan = call(tmp_path, "resume", "r", "--plan")
    as_json = call(tmp_path, "resume", "r", "--plan", "--json")

    assert plan.returncode == 1 and "REFUSED" in plan.stdout
    assert as_json.returncode == 1 and json.loads(as_json.stdout)["refused"]
