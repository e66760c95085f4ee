"""`holdfast diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import START, StateGraph, open_store
from holdfast.cli.difference import escaped, lines_of, value_text
from holdfast.state import Unknown
from holdfast.state import standard_types as budget
from holdfast.views import apply_patch
from holdfast.views.differences import difference
from tests.cli.in_process import Call, caller, three_runs
from tests.cli.processes import CHAIN, Session, write
from tests.cli.processes import call as call_program
from tests.graphs import chain


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> Call:
    monkeypatch.setenv("HOLDFAST_STORE", sqlite_url)
    return caller(capsys)


def steps(url: str, before: dict[str, Any], after: dict[str, Any], run_id: str = "run-1") -> None:
    """A run of two steps that leave `before` and `after` in the key `n`."""
    graph = chain(
        "one", "two", nodes={"one": lambda s: {"n": before}, "two": lambda s: {"n": after}}, name="w"
    )
    store = open_store(url)
    graph.compile(store).invoke(run_id=run_id)
    store.close()


LINE = "the quick brown fox " * 10
BEFORE = {
    "count": 1,
    "text": "\n".join(f"line {n}" for n in range(9)),
    "items": [{"id": n, "done": False} for n in range(3)],
    "line": LINE,
    "gone": 1,
}
AFTER = {
    "count": 4,
    "text": "\n".join(f"line {n}" if n != 4 else "LINE" for n in range(9)),
    "items": [{"id": 0, "done": False}, {"id": 1, "done": True}, {"id": 2, "done": False}, {"id": 3}],
    "line": f"{LINE[:100]}red {LINE[100:]}",
    "new": None,
}


def test_a_run_alone_is_compared_with_the_checkpoint_before(call: Call, sqlite_url: str) -> None:
    """S1.17."""
    steps(sqlite_url, BEFORE, AFTER)

    shown = call("diff", "run-1")

    assert shown.code == 0
    facts, _, tree = shown.out.partition("\n\n")
    assert facts.splitlines()[0].startswith("from    run-1 (w), wave 1 after one, running, ")
    assert "status  running → completed\nwave    1 → 2\nnode    one → two\nnext    two → nothing\n" in facts
    assert tree.splitlines() == [
        "state: 7 changes",
        "~ n:",
        "    ~ count: 1 → 4 (+3)",
        "    ~ text: 1 line removed, 1 added",
        "        @@ -2,7 +2,7 @@",
        "          line 1",
        "          line 2",
        "          line 3",
        "        - line 4",
        "        + LINE",
        "          line 5",
        "          line 6",
        "          line 7",
        "    ~ items: 1 inserted, 1 changed",
        "        ~ [1]:",
        "            ~ done: false → true",
        '        + [3] {"id": 3}',
        "    ~ line: …" + LINE[70:100] + "{+red +}" + LINE[100:130] + "… (from character 100 on)",
        "    - gone: 1",
        "    + new: null",
    ]


def test_same_states_are_said_to_be(call: Call, sqlite_url: str) -> None:
    steps(sqlite_url, {"a": 1}, {"a": 1})
    steps(sqlite_url, {"a": 1}, {"a": 1}, "run-2")

    assert call("diff", "run-1", "run-2").lines[-1] == "the states are the same"
    assert call("diff", "run-1", "run-2", "--exit-code").code == 0
    assert call("diff", "run-1@0", "run-2", "--exit-code").code == 1
    assert call("diff", "run-1@0", "run-2").code == 0


def test_the_difference_as_json_and_as_a_patch(call: Call, sqlite_url: str) -> None:
    steps(sqlite_url, BEFORE, AFTER)

    found = call("diff", "run-1@one", "run-1@two", "--json").json
    patch = call("diff", "run-1@one", "run-1@two", "--patch", "--key", "n").json

    assert found["store"] == sqlite_url and found["changes"] == 7 and found["same"] is False
    assert found["one"]["run_id"] == "run-1" and found["facts"]["wave"] == {"from": 1, "to": 2}
    assert found["state"]["changed"]["n"]["changed"]["count"] == {
        "kind": "value",
        "from": 1,
        "to": 4,
        "delta": 3,
    }
    assert apply_patch({"n": BEFORE}, patch) == {"n": AFTER}


def test_what_is_shown_is_bounded_and_says_what_is_left_out(call: Call, sqlite_url: str) -> None:
    steps(sqlite_url, {f"k{n}": n for n in range(500)}, {f"k{n}": n + 1 for n in range(500)})

    assert call("diff", "run-1").lines[-1] == "… 301 more changes; --all shows them"
    assert call("diff", "run-1", "--max-lines", "500").lines[-1] == "… 1 more change; --all shows it"
    few = call("diff", "run-1", "--max-lines", "3").lines
    assert few[-4:] == [
        "~ n:",
        "    ~ k0: 0 → 1 (+1)",
        "    ~ k1: 1 → 2 (+1)",
        "… 498 more changes; --all shows them",
    ]
    every = call("diff", "run-1", "--all").lines
    assert every[-1] == "    ~ k499: 499 → 500 (+1)"


def test_a_long_hunk_is_cut_as_well(call: Call, sqlite_url: str) -> None:
    steps(sqlite_url, {"t": "a\n" * 500}, {"t": "b\n" * 500})

    shown = call("diff", "run-1", "--max-lines", "5").lines

    assert shown[-1] == "… the rest of the last change is left out; --all shows it"


def test_lines_are_as_wide_as_there_is_room_and_show_where_they_differ(call: Call, sqlite_url: str) -> None:
    long = "word " * 100
    steps(
        sqlite_url,
        {"t": f"a\n{long}x\nb", "new": 1},
        {"t": f"a\n{long}y\nb", "new": "z" * 500, "more": [long]},
    )

    shown = call("diff", "run-1", "--width", "60").lines
    tree = shown[shown.index("~ n:") :]

    assert all(len(line) <= 60 for line in tree)
    assert any(line.strip().startswith("- …") and line.endswith("word x") for line in tree)
    assert any(line.strip().startswith("+ …") and line.endswith("word y") for line in tree)


def test_nothing_in_a_value_is_obeyed_by_a_terminal(call: Call, sqlite_url: str) -> None:
    evil = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202e\u200b"
    steps(
        sqlite_url,
        {evil: 1, "s": evil, "t": f"a\n{evil}", "l": [evil], "one": evil * 9},
        {"s": "", "t": "a", "l": [evil, {evil: evil}], "one": f"{evil * 4}x{evil * 5}", "k": {evil: [evil]}},
    )

    shown = call("diff", "run-1").out

    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e", "\u200b"}
    assert "\\x1b[31m" in shown and "\\u202e" in shown


def test_in_a_terminal_it_is_coloured_unless_that_is_not_wanted(tmp_path: Path) -> None:
    steps(f"sqlite:///{tmp_path / 'runs.db'}", {"a": 1}, {"a": "\x1b[5m", "b": 1})

    def screen(**env: str) -> str:
        session = Session(tmp_path, "diff", "run-1", "--store", "sqlite:///runs.db", **env)
        assert session.end() == 0
        assert "+ b: 1" in session.screen
        return session.raw

    coloured = screen()
    assert "\x1b[32m" in coloured and "\x1b[5m" not in coloured
    assert "\x1b[32m" not in screen(NO_COLOR="1")


def test_keys_that_are_not_compared_are_named_by_text_json_and_patch(
    call: Call, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {
        "one": lambda s: {"large": [[]] * 900, "n": 1},
        "two": lambda s: {"large": [[]] * 1000, "n": 2},
    }
    store = open_store(sqlite_url)
    graph = StateGraph(dict, name="w")
    for name, work in nodes.items():
        graph.add_node(name, work)
    graph.add_edge(START, "one").add_edge("one", "two").compile(store).invoke(run_id="run-1")
    store.close()
    monkeypatch.setattr(budget, "MOST_TOGETHER", 50_000)

    text, data, patch = (call("diff", "run-1", *more) for more in ((), ("--json",), ("--patch",)))
    named = call("diff", "run-1", "--patch", "--key", "large", "--key", "n")

    assert "large was not compared: changed, 1.9 KB; name it with --key\n" in text.out
    assert "cannot be read" not in text.out and "state: 1 change\n" in text.out
    assert data.json["not_compared"] == {"large": "changed, 1.9 KB; name it with --key"}
    assert [step["path"] for step in patch.json] == ["/n"]
    assert patch.err == (
        "the patch leaves out large, which was not compared: changed, 1.9 KB; name it with --key\n"
    )
    assert "/n" in [step["path"] for step in named.json] and len(named.json) > 1 and named.err == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nobody"], "no run, checkpoint or workflow 'nobody'"),
        (["run-1@9"], "no checkpoint after wave 9"),
        (["run-1", "run-1@nowhere"], "no checkpoint after 'nowhere'"),
        (["run-1@0"], "nothing saved before that"),
    ],
)
def test_what_is_not_found_is_a_failure(call: Call, sqlite_url: str, words: list[str], says: str) -> None:
    steps(sqlite_url, {"a": 1}, {"a": 2})

    refused = call("diff", *words)

    assert refused.code == 1 and says in refused.err and refused.out == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run-1", "--key", "m"], "neither state has a key 'm'; there are: log, n"),
        (["run-1", "--all", "--max-lines", "3"], "give either --all or --max-lines"),
        (["run-1", "--json", "--all"], "are for text"),
        (["run-1", "--patch", "--width", "80"], "are for text"),
        (["run-1", "--json", "--patch"], "give either --json or --patch"),
        (["run-1", "--width", "5"], "--width"),
        (["run-", "run-1"], "2 runs begin with 'run-'"),
        ([], "Missing argument"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Call, sqlite_url: str, words: list[str], says: str) -> None:
    steps(sqlite_url, {"a": 1}, {"a": 2})
    steps(sqlite_url, {"a": 1}, {"a": 2}, "run-2")

    refused = call("diff", *words)

    assert refused.code == 2 and says in refused.err
    assert refused.out == "" or refused.json["status"] == "error"


def test_runs_are_named_by_the_beginning_of_their_ids_and_by_workflows(call: Call, sqlite_url: str) -> None:
    three_runs(sqlite_url)
    steps(sqlite_url, {"a": 1}, {"a": 2}, "long-name@home")

    assert call("diff", "long@1", "long-name@home", "--json").json["changes"] == 1
    assert call("diff", "fine@a", "fine", "--json").json["state"]["changed"]["log"]["kind"] == "list"
    assert call("diff", "asked", "bad", "--json").json["facts"]["pauses"] == {"from": ["q"], "to": []}


def test_a_workflow_file_is_compared_without_what_its_helpers_keep(tmp_path: Path) -> None:
    each = "{name: each, for_each: {in: [1, 2], as: it}, python: 'acts.py:first'}"
    flow = CHAIN.replace("  - {name: gated", f"  - {each}\n  - {{name: gated")
    write(tmp_path, "chain.yaml", flow)
    (tmp_path / "open").touch()
    ran = call_program(tmp_path, "run", "chain.yaml", "--run-id", "r")
    assert ran.returncode == 0, ran.stderr

    done = call_program(tmp_path, "diff", "chain.yaml@first", "chain.yaml", "--json")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["state"]
    told = {*found["added"], *found["changed"]}
    assert {"second", "each", "gated"} <= told and not [key for key in told if ":" in key]


def test_values_are_written_so_that_they_are_not_taken_for_others() -> None:
    assert [value_text(value, 30) for value in ("1", 1, True, None, 1.5, float("nan"))] == [
        '"1"',
        "1",
        "true",
        "null",
        "1.5",
        "NaN",
    ]
    assert value_text(b"abc", 30) == "<3 bytes>"
    assert value_text(10**5000, 30) == "<integer of 16610 bits>"
    assert value_text("x" * 99, 10) == '"xxxxxxxx…'
    assert escaped("a\tb\x00\ud800é") == "a\\tb\\x00\\ud800é"
    change = difference({1: 0, "1": 0}, {1: -2, "1": b"ab", "x y": 10**5000}).change
    assert change is not None
    texts = [line.text for line in lines_of(change, 80)]
    assert texts == ["1: 0 → -2 (-2)", '"1": 0 → <2 bytes> (int → bytes)', '"x y": <integer of 16610 bits>']


def drawn(one: Any, other: Any, width: int = 60) -> list[str]:
    change = difference(one, other).change
    assert change is not None
    return [f"{'    ' * line.depth}{line.sign} {line.text}" for line in lines_of(change, width)]


def test_every_kind_of_change_has_its_lines() -> None:
    """S1.17."""
    long = "x" * 200

    assert drawn({"s": {"a", "b"}}, {"s": {"b", "c"}}) == ["~ s:", '    - "a"', '    + "c"']
    assert drawn({"p": Unknown("Plan", {"n": 1})}, {"p": Unknown("Plan", {"n": 2})}) == [
        "~ p (Plan):",
        "    ~ n: 1 → 2 (+1)",
    ]
    assert drawn({"p": Unknown("Color", "red")}, {"p": Unknown("Color", "blue")}) == [
        '~ p (Color): "red" → "blue"'
    ]
    assert drawn({"p": Unknown("A", Unknown("B", 1))}, {"p": Unknown("A", Unknown("B", 2))}) == [
        "~ p (A):",
        "    - 1",
        "    + 2",
    ]
    assert drawn({"b": b"abc"}, {"b": b"abd!"}) == ["~ b: <3 bytes> → <4 bytes> (from byte 2 on)"]
    assert drawn({"v": 1}, {"v": long}, 40) == [
        "~ v: (int → str)",
        "    - 1",
        f'    + "{long[:32]}…',
    ]
    assert drawn([long], [f"{long[:100]}{'y' * 300}{long[100:]}"], 100) == [
        f"~ [0]: …{'x' * 30}{{+{'y' * 10}… 280 more …{'y' * 10}+}}{'x' * 30}… (from character 100 on)"
    ]
    assert drawn(long, f"{long}!", 100) == [f"~ …{'x' * 30}{{+!+}} (from character 200 on)"]
    assert drawn(1, 2) == ["- 1", "+ 2"]
    assert drawn({"f": 0.1}, {"f": 0.3}) == ["~ f: 0.1 → 0.3 (+0.2)"]
    assert drawn({"t": (1, 2)}, {"t": [1, 2]}) == ["~ t: [1, 2] → [1, 2] (tuple → list)"]
