"""Checkpoint files: saving, loading with care, and starting from one."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import enum
import logging
import os
import pickle
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from holdfast import (
    END,
    START,
    App,
    CheckpointNotFound,
    CodecError,
    CorruptJournal,
    ExecutionError,
    GraphChanged,
    RunStatus,
    StateGraph,
    StoreError,
    clock,
    register_type,
)
from holdfast.stores.memory import MemoryStore


@dataclass
class Order:
    number: int


@dataclass
class Registered:
    text: str


class Colour(enum.Enum):
    RED = 1


class Shop(TypedDict, total=False):
    order: Order
    log: list[str]


def chain(*names: str, ran: list[str] | None = None, **options: Any) -> StateGraph:
    """A chain whose nodes add their name to `log` and append it to `ran`."""
    graph = StateGraph(dict, name="w", **options)

    def says(name: str) -> Callable[..., Any]:
        def node(state: Any, config: Mapping[str, Any]) -> dict[str, Any]:
            if ran is not None:
                ran.append(name)
            return {"log": [*state.get("log", []), name], "config": dict(config)}

        return node

    previous = START
    for name in names:
        graph.add_node(name, says(name))
        graph.add_edge(previous, name)
        previous = name
    graph.add_edge(previous, END)
    return graph


@pytest.fixture
def app() -> App:
    return chain("a", "b", "c").compile(MemoryStore())


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.pkl")
    return path


# Saving and loading.


def test_a_saved_checkpoint_holds_state_node_config_time_and_version(app: App, tmp_path: Path) -> None:
    """S4.1, S4.2, S4.6."""
    path = tmp_path / "deep" / "down" / "b.pkl"
    before = time.time()

    assert app.save_checkpoint(str(path), {"log": ["a"]}, "b", {"model": "small"}) == path

    content = App.load_checkpoint(path)
    assert before <= content.pop("timestamp") <= time.time()
    assert content == {"state": {"log": ["a"]}, "node": "b", "config": {"model": "small"}, "version": "1.0"}
    assert app.load_checkpoint(str(path))["node"] == "b"


def test_a_checkpoint_file_is_a_plain_pickle(app: App, tmp_path: Path) -> None:
    """S4.14: any pickle reader can open it, and Holdfast opens any pickle of that shape."""
    path = app.save_checkpoint(tmp_path / "b.pkl", app.invoke({"log": []}).state, "b")
    content = pickle.loads(path.read_bytes())
    assert type(content["state"]) is dict and type(content["state"]["log"]) is list

    foreign = {"state": {"log": ["x"]}, "node": "c", "config": {}, "timestamp": 1.5, "version": "1.0"}
    path.write_bytes(pickle.dumps(foreign, protocol=2))

    assert app.load_checkpoint(path) == foreign
    assert app.invoke(checkpoint=path).state["log"] == ["x", "c"]


def test_the_usual_types_survive_a_checkpoint_file(app: App, tmp_path: Path) -> None:
    state = {
        "tuple": (1, "x"),
        "set": {1, 2},
        "frozen": frozenset({3}),
        "bytes": b"\0\xff",
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "span": dt.timedelta(seconds=3),
        "money": decimal.Decimal("1.10"),
        "id": uuid.UUID(int=5),
        "counter": collections.Counter("abca"),
        "deque": collections.deque([1, 2], maxlen=3),
        "default": collections.defaultdict(list, {"k": [1]}),
        "path": Path("x/y"),
        "big": 1 << 200,
        "complex": 1 + 2j,
    }
    path = app.save_checkpoint(tmp_path / "b.pkl", state, "b")

    loaded = app.load_checkpoint(path)["state"]

    assert loaded == state
    assert {key: type(value) for key, value in loaded.items()} == {
        key: type(value) for key, value in state.items()
    }


def test_a_value_that_cannot_be_saved_is_refused_and_no_file_is_left(app: App, tmp_path: Path) -> None:
    """S4.15."""
    with pytest.raises(CodecError, match=r"checkpoint .*b\.pkl cannot be saved"):
        app.save_checkpoint(tmp_path / "b.pkl", {"f": lambda: None}, "b")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_store_error(app: App, tmp_path: Path) -> None:
    """S4.15."""
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(StoreError, match="cannot be saved"):
        app.save_checkpoint(tmp_path / "file" / "b.pkl", {}, "b")


# Starting from a file.


def test_a_run_from_a_file_begins_with_the_saved_node_and_runs_it_again(app: App, tmp_path: Path) -> None:
    """S4.3, S4.4, S4.5, S4.11: three ways, one behaviour."""
    path = app.save_checkpoint(tmp_path / "b.pkl", {"log": ["saved"]}, "b")

    invoked = app.invoke(checkpoint=path).state["log"]
    streamed = [event.node for event in app.stream(checkpoint=path) if event.type == "node.complete"]
    resumed = [event.node for event in app.resume_from_checkpoint(path) if event.type == "node.complete"]

    assert invoked == ["saved", "b", "c"]
    assert streamed == resumed == ["b", "c"]


async def test_a_run_from_a_file_can_be_awaited(app: App, tmp_path: Path) -> None:
    path = app.save_checkpoint(tmp_path / "c.pkl", {"log": []}, "c")

    assert (await app.ainvoke(checkpoint=str(path))).state["log"] == ["c"]
    assert [event.node async for event in app.astream(checkpoint=path) if event.type == "node.complete"] == [
        "c"
    ]


def test_a_run_from_a_file_is_a_run_of_its_own_that_can_be_named(app: App, tmp_path: Path) -> None:
    path = app.save_checkpoint(tmp_path / "b.pkl", {}, "b")

    assert app.invoke(checkpoint=path, run_id="mine").run_id == "mine"
    assert app.resume(path).run_id != app.resume(path).run_id


def test_the_saved_config_is_merged_with_the_given_and_the_given_wins(app: App, tmp_path: Path) -> None:
    """S4.12."""
    path = app.save_checkpoint(tmp_path / "c.pkl", {}, "c", {"model": "small", "depth": 3})

    merged = app.invoke(checkpoint=path, config={"model": "large", "extra": 1}).state["config"]

    assert merged == {"model": "large", "depth": 3, "extra": 1}
    assert app.invoke(checkpoint=path).state["config"] == {"model": "small", "depth": 3}
    events = list(app.resume_from_checkpoint(path, config={"depth": 4}))
    assert next(e for e in events if e.type == "node.complete").data["update"]["config"]["depth"] == 4


def test_a_file_whose_node_is_gone_is_an_error(app: App, tmp_path: Path) -> None:
    path = chain("x").compile().save_checkpoint(tmp_path / "x.pkl", {}, "x")

    with pytest.raises(GraphChanged, match="node not found: x"):
        app.invoke(checkpoint=path)


# Files written at interrupts.


@pytest.mark.parametrize("where", ["compile", "StateGraph"])
def test_an_interrupt_writes_a_file_named_after_the_node_and_the_time(where: str, tmp_path: Path) -> None:
    """S4.7, S4.9."""
    at_graph = {"checkpoint_dir": str(tmp_path)} if where == "StateGraph" else {}
    at_compile = {"checkpoint_dir": tmp_path} if where == "compile" else {}
    app = chain("a", "b", **at_graph).compile(MemoryStore(), interrupt_before=["b"], **at_compile)
    before = int(time.time() * 1000)

    app.invoke({})

    name = re.fullmatch(r"b_(\d{13,})\.pkl", only_file(tmp_path).name)
    assert name is not None
    assert before <= int(name[1]) <= int(time.time() * 1000)
    assert [path.suffix for path in tmp_path.iterdir()] == [".pkl"]


def test_the_folder_given_to_compile_wins(tmp_path: Path) -> None:
    graph = chain("a", "b", checkpoint_dir=str(tmp_path / "one"))

    graph.compile(MemoryStore(), interrupt_before=["b"], checkpoint_dir=tmp_path / "two").invoke({})

    assert (tmp_path / "two").exists() and not (tmp_path / "one").exists()


@pytest.mark.parametrize("kind", ["before", "after"])
@pytest.mark.parametrize("how", ["invoke", "stream"])
def test_the_file_is_written_before_the_interrupt_is_told(kind: str, how: str, tmp_path: Path) -> None:
    """S4.8: whoever hears of the interrupt finds the file."""
    seen: list[tuple[bool, str, list[str]]] = []

    def observe(event: Any) -> None:
        if event.matches("interrupt"):
            path = Path(event.data["checkpoint_path"])
            seen.append((path.exists(), event.node, list(event.data["state"]["log"])))

    node = "a" if kind == "after" else "b"
    gates: dict[str, Any] = {f"interrupt_{kind}": [node]}
    app = chain("a", "b").compile(MemoryStore(), checkpoint_dir=tmp_path, **gates)
    if how == "invoke":
        app.invoke({}, observer=observe)
    else:
        for event in app.stream({}):
            observe(event)

    assert seen == [(True, node, ["a"])]


def test_without_a_folder_an_interrupt_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.10."""
    monkeypatch.chdir(tmp_path)
    app = chain("a", "b").compile(MemoryStore(), interrupt_before=["b"])

    (event,) = [event for event in app.stream({}) if event.matches("interrupt")]

    assert (event.node, event.data["state"]["log"], event.data["checkpoint_path"]) == ("b", ["a"], None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_an_interrupt_before_a_node_runs_that_node(tmp_path: Path) -> None:
    """S4.11: the saved node is executed, not passed over."""
    ran: list[str] = []
    app = chain("a", "b", "c", ran=ran).compile(
        MemoryStore(), interrupt_before=["b"], checkpoint_dir=tmp_path
    )
    app.invoke({}, config={"model": "small"})
    path = only_file(tmp_path)
    content = app.load_checkpoint(path)
    assert (content["node"], content["state"]["log"], content["config"]) == ("b", ["a"], {"model": "small"})

    plain = chain("a", "b", "c", ran=ran).compile(MemoryStore())

    assert plain.invoke(checkpoint=path).state["log"] == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]


def test_a_file_of_an_interrupt_after_a_node_goes_on_with_the_next(tmp_path: Path) -> None:
    """S4.8: the finished node does not run twice; the file stores where to go on."""
    ran: list[str] = []
    app = chain("a", "b", "c", ran=ran).compile(MemoryStore(), interrupt_after=["a"], checkpoint_dir=tmp_path)
    app.invoke({})
    path = only_file(tmp_path)
    assert path.name.startswith("a_") and app.load_checkpoint(path)["node"] == "b"

    plain = chain("a", "b", "c", ran=ran).compile(MemoryStore())

    assert plain.invoke(checkpoint=path).state["log"] == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]


def test_a_file_of_an_interrupt_after_the_last_node_has_nothing_left_to_run(tmp_path: Path) -> None:
    ran: list[str] = []
    app = chain("a", ran=ran).compile(MemoryStore(), interrupt_after=["a"], checkpoint_dir=tmp_path)
    app.invoke({})

    outcome = chain("a", ran=ran).compile(MemoryStore()).invoke(checkpoint=only_file(tmp_path))

    assert outcome.status == RunStatus.COMPLETED and outcome.state["log"] == ["a"] and ran == ["a"]


def test_a_run_from_a_file_meets_the_later_interrupts_and_not_its_own_again(tmp_path: Path) -> None:
    """Interrupts hold after a resume too."""
    options: dict[str, Any] = {"interrupt_after": ["a", "b"], "checkpoint_dir": tmp_path}
    app = chain("a", "b", "c").compile(MemoryStore(), **options)
    app.invoke({})
    first = only_file(tmp_path)

    second = app.invoke(checkpoint=first)

    assert second.status == RunStatus.PAUSED and second.pauses[0].node == "b"
    latest = max(tmp_path.glob("b_*.pkl"))
    assert app.invoke(checkpoint=latest).state["log"] == ["a", "b", "c"]


def test_two_interrupts_in_one_millisecond_write_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = chain("a", "b").compile(MemoryStore(), interrupt_before=["b"], checkpoint_dir=tmp_path)
    frozen = time.time()
    monkeypatch.setattr(clock, "time", lambda: frozen)

    app.invoke({})
    app.invoke({})

    stamp = int(frozen * 1000)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"b_{stamp}.pkl", f"b_{stamp + 1}.pkl"]


def test_a_file_taken_while_siblings_are_under_way_says_what_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S4.13: only the main state is held; all that is to run next is named."""
    graph = StateGraph(dict, name="w")
    for name in ("left", "right"):
        graph.add_node(name, lambda state: None)
        graph.add_edge(START, name)
    app = graph.compile(MemoryStore(), interrupt_before=["left"], checkpoint_dir=tmp_path)

    with caplog.at_level(logging.WARNING, "holdfast"):
        app.invoke({"n": 1})

    assert "holds the main state only" in caplog.text
    assert app.load_checkpoint(only_file(tmp_path))["state"] == {"n": 1}


def test_a_file_that_cannot_be_written_fails_the_run_by_default(tmp_path: Path) -> None:
    """S4.15, S3.13."""
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    app = chain("a", "b").compile(MemoryStore(), interrupt_before=["b"], checkpoint_dir=blocked)

    with pytest.raises(ExecutionError, match=r"checkpoint save failed: .*cannot be saved"):
        app.invoke({})


# Files that cannot be trusted.


def test_a_missing_file_is_said_to_be_missing(app: App, tmp_path: Path) -> None:
    """S4.15."""
    for read in (app.load_checkpoint, lambda path: app.invoke(checkpoint=path), app.resume):
        with pytest.raises(CheckpointNotFound, match=r"checkpoint file not found: .*gone\.pkl"):
            read(tmp_path / "gone.pkl")
    with pytest.raises(CheckpointNotFound):
        list(app.resume_from_checkpoint(tmp_path / "gone.pkl"))


@pytest.mark.parametrize("data", [b"", b"not a pickle", b"\x80\x04\x95", b"\x80\x04K\x01"])
def test_a_corrupt_file_is_said_to_be_corrupt(app: App, tmp_path: Path, data: bytes) -> None:
    """S4.15, S0.14."""
    path = tmp_path / "x.pkl"
    path.write_bytes(data)

    with pytest.raises(CorruptJournal, match="corrupt checkpoint file"):
        app.load_checkpoint(path)


def test_a_file_cut_off_anywhere_is_refused(app: App, tmp_path: Path) -> None:
    path = app.save_checkpoint(tmp_path / "b.pkl", {"log": ["x" * 50], "n": 3}, "b")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises((CorruptJournal, CodecError)):
            app.load_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"node": "b", "config": {}, "version": "1.0"},
        {"state": {}, "config": {}, "version": "1.0"},
        {"state": {}, "node": 5, "config": {}, "version": "1.0"},
        {"state": {}, "node": "b", "config": None, "version": "1.0"},
        {"state": {}, "node": "b", "config": {}, "version": "2.0"},
        {"state": {}, "node": "b", "config": {}},
    ],
)
def test_a_file_of_another_shape_or_version_is_incompatible(app: App, tmp_path: Path, content: Any) -> None:
    """S4.15."""
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps(content))

    with pytest.raises(CodecError, match="incompatible checkpoint file"):
        app.load_checkpoint(path)


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def attacks(mark: Path) -> dict[str, bytes]:
    """Pickles that would leave a mark on the disk if anything in them were called."""
    write = f"open({str(mark)!r}, 'w').close()"

    def wrapped(value: Any) -> bytes:
        return pickle.dumps({"state": {"x": value}, "node": "b", "config": {}, "version": "1.0"})

    def chained(*names: str) -> bytes:
        """`builtins.getattr` from attribute to attribute, as an attacker would reach for `os.system`."""
        text = b"cbuiltins\ngetattr\n(c" + names[0].encode() + b"\n" + names[1].encode() + b"\n"
        for name in names[2:]:
            text += b"X" + len(name).to_bytes(4, "little") + name.encode()
        return b"\x80\x02" + text + b"tR."

    def named(module: str, name: str) -> bytes:
        parts = [b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name)]
        return b"\x80\x04" + b"".join(parts) + b"\x93."

    return {
        "os.system": wrapped(Calls(os.system, f"touch {mark}")),
        "eval": wrapped(Calls(eval, write)),
        "exec": wrapped(Calls(exec, write)),
        "open": wrapped(Calls(open, str(mark), "w")),
        "getattr": chained("os", "path", "system"),
        "a chain through a module": chained("collections", "abc", "sys"),
        "a dotted name": named("collections", "_sys.modules.os"),
        "a dotted name of an allowed type": named("datetime", "datetime.__subclasses__"),
        "a method of an allowed type": named("pathlib", "PosixPath.touch"),
        "__import__": wrapped(Calls(__import__, "antigravity")),
        "a class of this module": wrapped(Order(1)),
        "an enum that is not registered": wrapped(Colour.RED),
    }


@pytest.mark.parametrize("name", attacks(Path("mark")))
def test_a_malicious_file_is_refused_and_nothing_of_it_is_executed(
    app: App, tmp_path: Path, name: str
) -> None:
    mark, path = tmp_path / "mark", tmp_path / "x.pkl"
    path.write_bytes(attacks(mark)[name])

    for read in (app.load_checkpoint, lambda path: app.invoke(checkpoint=path)):
        with pytest.raises(CodecError, match="which is not on the list of allowed types"):
            read(path)

    assert not mark.exists()


def test_the_attacks_above_are_real(tmp_path: Path) -> None:
    """An ordinary unpickler runs them: the refusals are not refusals of nonsense."""
    for name in ("os.system", "eval", "exec"):
        mark = tmp_path / name
        pickle.loads(attacks(mark)[name])
        assert mark.exists(), name


def test_a_persistent_id_is_refused(app: App, tmp_path: Path) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"Pmodule.name\n.")

    with pytest.raises((CodecError, CorruptJournal)):
        app.load_checkpoint(path)


def test_a_type_of_the_state_schema_is_allowed_in_files_of_that_app(tmp_path: Path) -> None:
    graph = StateGraph(Shop, name="shop")
    graph.add_node("ship", lambda state: {"log": [f"shipped {state['order'].number}"]})
    graph.add_edge(START, "ship")
    graph.add_edge("ship", END)
    app = graph.compile(MemoryStore(), interrupt_before=["ship"], checkpoint_dir=tmp_path)
    app.invoke({"order": Order(7)})

    outcome = graph.compile(MemoryStore()).invoke(checkpoint=only_file(tmp_path))

    assert outcome.state["log"] == ["shipped 7"]


def test_a_registered_type_is_allowed(app: App, tmp_path: Path) -> None:
    register_type(Registered)
    path = app.save_checkpoint(tmp_path / "c.pkl", {"r": Registered("x")}, "c")

    assert app.load_checkpoint(path)["state"]["r"] == Registered("x")
    assert app.invoke(checkpoint=path).state["r"] == Registered("x")


def test_loading_and_saving_are_logged_for_debugging(
    app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S4.15."""
    with caplog.at_level(logging.DEBUG, "holdfast"):
        app.load_checkpoint(app.save_checkpoint(tmp_path / "b.pkl", {}, "b"))

    assert "saved checkpoint" in caplog.text and "loaded checkpoint" in caplog.text
