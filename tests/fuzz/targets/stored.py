"""Stores: their bytes on a disk in any state, the names of their checkpoints, and their URLs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from random import Random
from typing import Any

from holdfast import HoldfastError, open_store
from holdfast.capsules import copy_runs
from holdfast.engine.time_travel.checkpoints import checkpoint_at, find_position
from holdfast.errors import StoreError
from holdfast.integrity import check_store
from holdfast.integrity.repair import repair_store
from holdfast.journal.journal import Journal
from holdfast.views.runs import run_view
from tests.crash.flips import MEDIA, _settle, _state, fill, seen, wrong
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.target import MEGABYTE, Check, Target, Wrong, own_folder
from tests.graphs import chain

_BLOCK = 512


class _Stored:
    """A store that was filled once, as bytes, and what readers saw of it."""

    def __init__(self, kind: str) -> None:
        self.kind, self.media, folder = kind, MEDIA[kind], own_folder()
        whole = folder / "whole"
        whole.mkdir()
        store = open_store(self.media.url.format(whole))
        fill(store)
        store.close()
        if kind == "sqlite":
            _settle(whole / "runs.db")
        store = open_store(self.media.url.format(whole))
        self.seen = seen(store, all_checkpoints=True)
        self.past = {info.run: _past(store, info.run) for info in store.runs()}
        store.close()
        if kind == "sqlite":
            _settle(whole / "runs.db")
        self.files = {str(path.relative_to(whole)): path.read_bytes() for path in self.media.files(whole)}
        # The names of forks and of keys are made at random: their order must not be.
        ordered = sorted(
            self.files,
            key=lambda name: (re.sub("[0-9a-f-]{16,}", "~", name), len(self.files[name]), self.files[name]),
        )
        self.names, self.folder = ordered, folder / "copy"
        self.aside = folder / "aside"

    def once_was(self, what: str, told: Any) -> bool:
        """Return whether a run once had the state that is shown now."""
        if isinstance(told, HoldfastError):
            return False
        return told in self.past.get(what.partition(" of ")[2], ())

    def knows_end(self, run: str, files: dict[str, bytes]) -> bool:
        """Return whether the facts beside a journal are unchanged, so that they show its last entry."""
        name = f"runs/{run}/run.json"
        return self.kind == "sqlite" or files.get(name) == self.files.get(name)

    def write(self, files: dict[str, bytes]) -> str:
        """Put files where a store can be opened."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, data in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return self.media.url.format(self.folder)


def _past(store: Any, run: str) -> list[Any]:
    """Return the states of a run after each of its entries."""
    journal, found = Journal(store), []
    for entry in store.read(run):
        with contextlib.suppress(HoldfastError):
            found.append(_state(journal, run, entry.seq))
            view = run_view(journal, run, upto=entry.seq)
            steps = [(step.name, str(step.status)) for step in view.steps]
            found.append(
                json.dumps({"state": view.state.to_dict(), "steps": steps}, default=str, sort_keys=True)
            )
    return found


def _changed(stored: _Stored, choices: Choices) -> dict[str, bytes]:
    files = dict(stored.files)
    for _ in range(1 + choices.below(3)):
        name = choices.of(stored.names)
        if name not in files:
            continue
        data = bytearray(files[name])
        way, at = choices.below(11), choices.below(len(data) + 1)
        block = at - at % _BLOCK
        other = stored.files[choices.of(stored.names)]
        match way:
            case 0 | 1:
                data[at : at + 1] = bytes([choices.byte()])
            case 2:
                del data[at:]
            case 3:
                data[block : block + _BLOCK] = bytes(min(_BLOCK, len(data) - block))
            case 4:
                source = choices.below(len(data) + 1)
                data[block : block + _BLOCK] = data[source - source % _BLOCK :][:_BLOCK]
            case 5:
                data[at:at] = choices.raw(choices.below(64))
            case 6:
                data += data[block:] if choices.below(2) else bytes(_BLOCK)
            case 7:
                data[at:] = other[choices.below(len(other) + 1) :]
            case 8:
                del data[at : at + choices.below(_BLOCK)]
            case 9:
                del files[name]
                continue
            case _:
                data = bytearray(other)
        files[name] = bytes(data)
    return files


def _store_check(kind: str) -> Check:
    stored = _Stored(kind)

    def check(data: bytes) -> str:
        choices = Choices(data)
        files = _changed(stored, choices)
        url = stored.write(files)
        store = open_store(url)
        try:
            now = seen(store)
            false, behind = _false(stored, now)
            if false:
                raise Wrong(f"readers are told what was never written: {false[:3]}")
            report = check_store(store)
            for run in behind:
                if not any(repr(run) in problem for problem in report.problems) and stored.knows_end(
                    run, files
                ):
                    raise Wrong(f"fsck does not tell that the end of {run!r} is lost: {report.problems}")
            json.dumps(report.as_json())
            if not report.problems and any(isinstance(told, HoldfastError) for told in now.values()):
                refused = {what: str(told) for what, told in now.items() if isinstance(told, HoldfastError)}
                raise Wrong(f"fsck finds nothing, and readers are refused: {refused}")
            told = f"{min(3, len(report.problems))} problems"
            is_to_be_repaired = report.problems and choices.chance(3)
            return f"{told}, {_repaired(stored, store)}" if is_to_be_repaired else told
        finally:
            with contextlib.suppress(HoldfastError):
                store.close()

    return check


def _false(stored: _Stored, now: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return what is shown and never was so, and runs that are shown in an earlier state: truncated journals."""
    behind = sorted(
        {
            what.partition(" of ")[2]
            for what, told in now.items()
            if what.startswith(("head of ", "view of "))
            and told != stored.seen.get(what)
            and stored.once_was(what, told)
        }
    )
    about = tuple(f"{kind} of {run}" for run in behind for kind in ("head", "view"))
    # One whose end is lost, and whose journal cannot be read, may be listed as it was while it ran.
    listed = now.get("runs", ())
    lines = [line for line in listed if line[2] == "running"] if isinstance(listed, list) else []
    known = {(run, workflow, tags) for run, workflow, _, tags in stored.seen["runs"]}
    past = [f"run {line}" for line in lines if (line[0], line[1], line[3]) in known]
    false = [told for told in wrong(stored.seen, now) if not told.startswith((*about, *past))]
    return false, sorted({*behind, *(line[0] for line in lines)})


def _repaired(stored: _Stored, store: Any) -> str:
    """Repair a store: it either reports why not, or readers see nothing false after it."""
    shutil.rmtree(stored.aside, ignore_errors=True)
    try:
        repair = repair_store(store, aside=stored.aside)
    except HoldfastError as error:
        return f"not repaired: {type(error).__name__}"
    json.dumps(repair.as_json())
    known = {what: told for what, told in seen(store).items() if what in stored.seen and what != "runs"}
    if false := _false(stored, known)[0]:
        raise Wrong(f"after the repair readers are told what was never written: {false[:3]}")
    return f"repaired, {min(3, len(check_store(store).problems))} problems left"


def file_store() -> Check:
    """A folder of files, damaged in any way: what is shown was written, or the damage is reported and repaired."""
    return _store_check("file")


def sqlite_store() -> Check:
    """A SQLite file, damaged in any way: what is shown was written, or the damage is reported and repaired."""
    return _store_check("sqlite")


def moments() -> Check:
    """Any text as the name of a checkpoint: a checkpoint, or an error that there is none."""
    folder = own_folder()
    stores = [
        open_store(url) for url in ("memory://", f"sqlite:///{folder}/runs.db", f"file://{folder}/runs")
    ]
    for store in stores:
        chain("a", "b", "a2", name="w").compile(store).invoke({"n": 1}, run_id="r")

    def check(data: bytes) -> str:
        choices = Choices(data)
        store = choices.of(stores)
        text = choices.rest().decode("utf-8", "surrogateescape")
        moment = find_position(store, text)
        point = checkpoint_at(store, moment)
        return f"{moment.seq}, {point is not None}"

    return check


def moment_text(rng: Random) -> bytes:
    """Something like a name."""
    bits = (
        "r",
        "w",
        "@",
        "@",
        "#",
        "-",
        "1",
        "2",
        "0",
        "a",
        "b",
        "9" * 19,
        "9" * 5000,
        "٣",
        "²",
        "r@a#",
        "r@-",
        "\0",
        "/",
        "é",
    )
    return (chr(rng.randrange(3)) + "".join(rng.choice(bits) for _ in range(rng.randrange(1, 6)))).encode()


def verbs() -> Check:
    """What stores are asked, with numbers and names of every size: each answers as the one in memory does."""
    folder = own_folder()
    memory = open_store("memory://")
    fill(memory)
    stores = [open_store(url) for url in (f"sqlite:///{folder}/runs.db", f"file://{folder}/runs")]
    for store in stores:
        copy_runs(memory, store)
        for info in memory.runs():
            for message in memory.inbox(info.run):
                if not store.inbox(info.run):
                    store.post(info.run, message.body)
    names = [
        "long",
        "asked",
        "pruned",
        *(info.run for info in memory.runs(parent=memory.runs(run="long")[0].key)),
    ]
    numbers = (
        0,
        1,
        2,
        3,
        4,
        5,
        -1,
        2**31,
        2**32 - 1,
        2**32,
        2**32 + 2,
        2**33 + 3,
        2**56,
        2**63,
        10**30,
        -(2**63),
        -(10**30),
    )

    def asked(store: Any, data: bytes) -> Any:
        choices = Choices(data)
        run = choices.of(names) if choices.below(8) else choices.raw(6).decode("utf-8", "replace")
        one, other = (None if choices.chance(5) else choices.of(numbers) for _ in range(2))
        limit = None if other is None else min(abs(other), 10**18)
        match choices.below(6):
            case 0:
                return [*store.read(run, one or 0, other)]
            case 1:
                return store.checkpoints(run, one, limit)
            case 2:
                return store.snapshot(run, one)
            case 3:
                return [message.body for message in store.inbox(run, one or 0)]
            case 4:
                return store.runs(
                    prefix=run[: choices.below(4)],
                    limit=limit,
                    before=choices.of((None, 0.0, 1e300, float("inf"))),
                )
            case _:
                return store.runs(
                    run=run,
                    workflow=choices.of((None, "long", "")),
                    status=choices.of((None, [], ["completed"])),
                    limit=limit,
                )

    def check(data: bytes) -> str:
        wanted = asked(memory, data)
        for store in stores:
            if (found := asked(store, data)) != wanted:
                raise Wrong(f"{store.url} says {found!r:.300}, not {wanted!r:.300}", type(store).__name__)
        return f"{type(wanted).__name__} {min(3, len(wanted)) if isinstance(wanted, list) else ''}"

    return check


def urls() -> Check:
    """Any text as the URL of a store: a store, or a `StoreError`."""
    folder = own_folder()
    os.chdir(folder)
    os.environ["HOME"] = str(folder / "home")

    def check(data: bytes) -> str:
        text = data.decode("utf-8", "surrogateescape")
        # Nothing outside of this folder, and no server.
        if (
            text.lower().startswith(("postgres", "pg-"))
            or ".." in text
            or re.search("(^|[:/])/(?!/?/?[^/]*$)", text)
        ):
            return "not opened"
        if re.match("/|sqlite:////|file:/+", text):
            return "not opened"
        store = open_store(text)
        told = type(store).__name__
        store.runs()
        store.close()
        return told

    return check


TARGETS = [
    Target(
        "file-store",
        file_store,
        (StoreError,),
        make=random_choices,
        share=2,
        longest=200,
        fresh=0.6,
        memory=1024 * MEGABYTE,
        seconds=20.0,
    ),
    Target(
        "sqlite-store",
        sqlite_store,
        (StoreError,),
        make=random_choices,
        share=2,
        longest=200,
        fresh=0.6,
        memory=1024 * MEGABYTE,
        seconds=20.0,
    ),
    Target("verbs", verbs, (), make=random_choices, share=60, longest=24, fresh=0.5),
    Target(
        "moments",
        moments,
        (HoldfastError,),
        lambda: [b"\0r@1", b"\1w@-1", b"\2r@a#1"],
        moment_text,
        share=60,
        longest=6000,
    ),
    Target(
        "urls",
        urls,
        (StoreError,),
        lambda: [b"memory://", b"sqlite:///x.db", b"file:runs?namespace=a", b"memory", b"x.sqlite"],
        share=30,
        longest=300,
        words=(
            b"?namespace=",
            b"sqlite:",
            b"file:",
            b"memory:",
            b"postgresql:",
            b".db",
            b"%2e",
            b"~",
            b"~nobody/",
            b"\\",
        ),
    ),
]
