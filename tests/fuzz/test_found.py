"""What fuzzing found, once each, so that it stays found."""

from __future__ import annotations

import io
from pathlib import Path

import ormsgpack
import pytest

from holdfast import CodecError, CorruptJournal, StoreError, open_store
from holdfast.cli.main import main
from holdfast.engine.commands.inbox import UNREADABLE, checksummed, read_message
from holdfast.engine.time_travel.checkpoints import find_position
from holdfast.errors import CheckpointNotFound
from holdfast.integrity import check_store
from holdfast.integrity.repair import repair_store
from holdfast.journal.journal import Journal
from holdfast.state.codec import WRITTEN, Codec
from holdfast.stores.base import Snapshot, Store
from holdfast.stores.memory import MemoryStore
from holdfast.testing.wrapped_store import WrappedStore
from holdfast.views.runs import run_view
from holdfast.workflows.language.templates import TemplateError, compile_expression
from holdfast.workflows.settings import seconds
from tests.graphs import chain


@pytest.mark.parametrize(
    "items",
    [
        pytest.param([19, "1e99999999"], id="a fraction of a text that is a number beyond any memory"),
        pytest.param([19, "1e99999999", 1], id="the same, of two"),
        pytest.param([25, "S", 10**12], id="as many zeros as a number says"),
        pytest.param([25, "U", 5], id="a text that is a number"),
    ],
)
def test_a_stored_value_of_the_wrong_kind_costs_nothing(items: list[object]) -> None:
    """Untrusted bytes are refused before they take time or memory."""
    code, *rest = items
    raw = b"\x01" + ormsgpack.packb([WRITTEN[code], *rest])  # type: ignore[index]

    with pytest.raises(CodecError):
        Codec().decode(raw)


def test_a_message_with_a_number_for_a_value_costs_nothing() -> None:
    """A number is not so many zeros."""
    change = [["key"], 2**44]
    commands = [
        {"kind": "edit", "changes": [change]},
        {"kind": "inject", "additions": [["n", None, [change]]]},
    ]

    read = [read_message(checksummed(ormsgpack.packb(command))) for command in commands]
    assert [command.kind for command in read] == [UNREADABLE] * 2


@pytest.mark.parametrize(
    ("text", "wanted"), [("[] * 9999999999999999999", []), ("'' * 9999999999999999999", "")]
)
def test_nothing_is_nothing_however_often(text: str, wanted: object) -> None:
    assert compile_expression(text).value({}) == wanted


@pytest.mark.parametrize("text", ["[] in {}", "[1] not in e", "{} in e"])
def test_what_cannot_be_a_key_is_not_looked_for(text: str) -> None:
    with pytest.raises(TemplateError, match="cannot be a key of a mapping"):
        compile_expression(text).value({"e": {"k": 1}})


@pytest.mark.parametrize("text", ["'' * 2.5", "2.5 * ''", "[] * 1.0", "'' * True", "'' * 'x'", "[] * none"])
def test_but_not_part_of_a_time(text: str) -> None:
    with pytest.raises(TemplateError, match="a whole number is needed here"):
        compile_expression(text).value({"none": None})


def test_half_a_character_in_an_expression_is_a_text_like_any_other() -> None:
    assert compile_expression("a == '\ud800'").value({"a": "\ud800"}) is True


@pytest.mark.parametrize(
    "value", ["9" * 310 + "w", "9" * 90 + "s" + "9" * 400, 10**400, float("inf"), "9" * 1_000_000]
)
def test_a_duration_is_finite_and_soon_read(value: object) -> None:
    """A text of a million digits once took hours."""
    with pytest.raises(ValueError, match="duration"):
        seconds(value)


@pytest.mark.parametrize(
    "place", ["9" * 5000, "-" + "9" * 30, "-" + "9" * 5000, "a#" + "9" * 5000, "-" + "9" * 18]
)
def test_a_moment_that_no_run_can_have_is_not_found(store: Store, place: str) -> None:
    """S0.14: an entry that was never saved is reported as such, whatever its number is."""
    chain("a", "b").compile(store).invoke({"n": 1}, run_id="r")

    with pytest.raises(CheckpointNotFound):
        find_position(store, f"r@{place}")


def test_no_number_leads_from_one_run_into_the_next(store: Store) -> None:
    """A store answers for the run that it was asked about."""
    app = chain("a", "b").compile(store)
    for run in ("one", "two", "three"):
        app.invoke({"n": 1}, run_id=run)
    whole = [mark.seq for mark in store.checkpoints("one")]

    for number in (2**32, 2**32 + 2, 2**33, 2**56, 2**62):
        assert [mark.seq for mark in store.checkpoints("one", number)] == whole
        assert list(store.read("one", number)) == []
        assert [entry.seq for entry in store.read("one", 0, number)] == [
            entry.seq for entry in store.read("one")
        ]
        assert store.snapshot("one", number) == store.snapshot("one")
        assert store.inbox("one", number) == []


def test_a_run_whose_journal_is_gone_is_told_as_damaged(tmp_path: Path) -> None:
    """S0.14, S4.15: reading a run that could not be repaired raises an error."""
    store = open_store(f"file://{tmp_path}/runs")
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    journal = tmp_path / "runs" / "r" / "journal"
    journal.write_bytes(b"\0" + journal.read_bytes()[1:])
    store = open_store(f"file://{tmp_path}/runs")
    assert check_store(store).problems

    repair_store(store, aside=tmp_path / "aside")

    with pytest.raises(CorruptJournal):
        run_view(Journal(store), "r")


@pytest.mark.parametrize(
    "url", ["a\0.db", "sqlite:///a\0b.db", "file:a\0b", "~nobody-here/x.db", "x" * 300, "\udcdb.db"]
)
def test_what_no_path_can_be_is_no_store(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StoreError):
        open_store(url)


@pytest.mark.parametrize(
    "words",
    [
        ["events", "r", "--since", "9" * 30],
        ["workflow", "draw", "[" * 2000],
        ["capsule", "keygen", "-o", "9" * 5000],
        ["show", "r@" + "9" * 5000],
    ],
)
def test_no_word_on_the_command_line_is_unforeseen(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R1.9: a command ends with a message and a code of the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///runs.db")
    store = open_store("sqlite:///runs.db")
    chain("a").compile(store).invoke({"n": 1}, run_id="r")
    store.close()

    code = main(words)

    assert code in (0, 1, 2, 3)
    assert "unexpected" not in capsys.readouterr().err


def test_a_name_that_is_not_unicode_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1.9: a command can report what it has done, whatever the name of the file."""
    monkeypatch.chdir(tmp_path)
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr("sys.stdout", out)

    assert main(["init", "a\udc80.yaml"]) == 0

    out.flush()
    assert b"wrote a\\udc80.yaml" in out.buffer.getvalue()  # type: ignore[attr-defined]


class Outdated(WrappedStore):
    """Its newest snapshot is one from before the run was pruned."""

    older: Snapshot

    def snapshot(self, run: str, upto: int | None = None) -> Snapshot | None:
        return self.older if upto is None else self.inner.snapshot(run, upto)


def test_a_snapshot_from_before_the_journal_begins_is_damage_and_no_endless_search() -> None:
    store = Outdated(MemoryStore())
    chain(*"abcd").compile(store).invoke({"n": 1}, run_id="r")
    journal, codec = Journal(store), Codec()
    store.older, horizon = (
        journal.make_snapshot(journal.load(journal.info("r"), codec, seq), codec) for seq in (2, 3)
    )
    assert store.prune("r", horizon) == 2

    with pytest.raises(CorruptJournal, match="the snapshot at 2 does not belong there"):
        journal.load(journal.info("r"), codec)
