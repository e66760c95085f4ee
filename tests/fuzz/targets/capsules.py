"""Capsules: untrusted files, changed, or made by hand with correct checksums."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random

import ormsgpack

from holdfast import open_store
from holdfast.capsules import export_run, import_run, inspect_capsule
from holdfast.capsules.exports import lines_of
from holdfast.capsules.format import Kind, Writer
from holdfast.capsules.summary import CapsuleInfo
from holdfast.engine.confirmation import confirm, disclose
from holdfast.errors import CapsuleInvalid, CapsuleLocked, ForeignRun, HoldfastError
from holdfast.integrity import check_store
from holdfast.journal.journal import Journal
from holdfast.state.codec import zstd
from holdfast.stores.base import Store
from holdfast.views.plain import CODEC
from holdfast.views.runs import run_list, run_view
from holdfast.views.timeline import timeline
from tests.capsules.samples import forged
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.mutating import Mutator
from tests.fuzz.target import MEGABYTE, Check, Target, Wrong, own_folder
from tests.fuzz.trying import CORPUS
from tests.journal.histories import history

MOST = 64 * MEGABYTE


def _whole() -> list[bytes]:
    """Capsules of small runs."""
    made = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        for kind in ("simple", "pausing", "failing"):
            told = history(kind)
            export_run(told.store, told.info.run, path, overwrite=True)
            made.append(path.read_bytes())
    return made


def capsule_bytes() -> Check:
    """The bytes of a capsule, changed in any way: always noticed, and nothing is left in the store."""
    path, whole = own_folder() / "run", _whole()
    target = open_store("memory://")

    def check(data: bytes) -> str:
        choices = Choices(data)
        good = choices.of(whole)
        changed = bytearray(good)
        for _ in range(1 + choices.below(3)):
            way, at = choices.below(7), choices.below(len(changed) + 1)
            if way < 2:
                changed[at : at + 1] = (
                    bytes([changed[at] ^ (1 + choices.below(255))]) if at < len(changed) else b"x"
                )
            elif way == 2:
                del changed[at:]
            elif way == 3:
                del changed[at : at + 1 + choices.below(60)]
            elif way == 4:
                changed[at:at] = choices.raw(choices.below(60))
            elif way == 5:
                other = choices.of(whole)
                changed[at:] = other[choices.below(len(other)) :]
            else:
                changed = bytearray(choices.rest())
        path.write_bytes(changed)
        if bytes(changed) in whole:
            return "the same"
        for reader in (_opened, lambda path: import_run(target, path)):
            try:
                reader(path)
            except CapsuleInvalid:
                continue
            raise Wrong(f"a changed capsule was read: {bytes(changed)!r:.200}")
        if target.runs():
            raise Wrong("something is left in the store")
        return f"noticed, {len(changed) < len(good)}"

    return check


def _opened(path: Path) -> None:
    """Look into a capsule. One that says that it is locked shows nothing."""
    if not inspect_capsule(path).is_open:
        raise CapsuleLocked(f"{path} is locked")


def _bodies() -> list[bytes]:
    folder = CORPUS / "records"
    return [b"\x01" + path.read_bytes() for path in sorted(folder.iterdir())]


def _bombs() -> list[bytes]:
    """Bodies that ask for far more than they are."""
    zeros = zstd.compress(bytes(80 * MEGABYTE))
    deep = b"\x91" * 200 + b"\xc0"
    step = ["a#1", [[0, "k", 1, zeros]], ["b"], None, 0.0]
    return [
        b"\x01" + ormsgpack.packb([[0, "w", [[0, "k", 1, zeros]] * 40, ["a"], None, {}, "", None]]),
        b"\x01\xdd\xff\xff\xff\xff" + bytes(50),
        b"\x01\xdc\xff\xff" + b"\xc0" * 65535,
        b"\x01" + deep,
        b"\x01" + ormsgpack.packb([[15, *step]]),
        b"\x01" + ormsgpack.packb([[0, "w", [[0, "k", 0, b"\x01" + deep]], ["a"], None, {}, "", None]]),
    ]


def forged_capsules() -> Check:
    """Capsules with right checksums and odd journals: refused, or a run that every reader can be shown."""
    path, bodies, bombs = own_folder() / "run", _bodies(), _bombs()

    def check(data: bytes) -> str:
        choices = Choices(data)
        # The first entry begins a run, so it is changed less often: else nothing else is ever looked at.
        chosen = [bodies[choices.below(len(bodies))] for _ in range(1 + choices.below(4))]
        rng = Random(data)
        change = Mutator(rng, [body[1:] for body in chosen], (b"\xc7\x00\x13", b"\xca\xff\xff\xff\xff"), 3000)
        starts = [body for body in bodies if body[2:4] in (b"\x98\x00", b"\x97\x00")] or bodies
        journal = [choices.of(starts)] if choices.below(4) else []
        for body in chosen:
            way = choices.below(6)
            journal.append(
                choices.of(bombs)
                if way == 5 and choices.chance(4)
                else body
                if way < 2
                else b"\x01" + change()
            )
        marks = [
            choices.of(
                (
                    None,
                    None,
                    b"\x94\x01\x90\x90\xa0",
                    b"\xff",
                    b"\x94\xd3\xff\xff\xff\xff\xff\xff\xff\xff\x90\x90\xa0",
                )
            )
            for _ in journal
        ]
        forged(path, journal, marks=marks)
        shown = inspect_capsule(path, max_state=MOST)
        store = open_store("memory://")
        imported = import_run(store, path, max_state=MOST)
        _check_foreign(store, imported.run, shown)
        return f"{imported.status}, {_shown(store, imported.run)}"

    return check


def _check_foreign(store: Store, run: str, shown: CapsuleInfo) -> None:
    """What would run is what inspection showed, nobody confirmed it, and no command waits for it."""
    journal = Journal(store)
    info = journal.info(run)
    try:
        loaded = journal.load(info, CODEC).run
    except HoldfastError:
        return  # What nobody can load, nobody runs.
    found = disclose(journal, info, loaded)
    if found is None or found.is_confirmed or found.inbox:
        raise Wrong("a stranger's run may run, or is to be told something")
    if json.dumps(found.config) != json.dumps(shown.config):
        raise Wrong("what would run is not what was shown")
    try:
        confirm(journal, info, loaded)
    except ForeignRun:
        return
    raise Wrong("a stranger's run is let through")


def _shown(store: object, run: str) -> str:
    """Let every reader look at an imported run: each shows it, or says why it cannot."""
    journal, told = Journal(store), []  # type: ignore[arg-type]
    for number, look in enumerate((
        lambda: json.dumps(run_view(journal, run).as_json()),
        lambda: [line.as_json() for line in run_list(journal)],
        lambda: [json.loads(line) for line in lines_of(journal, run)],
        lambda: [*timeline(journal, run)],
        lambda: check_store(journal.store).as_json(),
    )):  # fmt: skip
        try:
            look()
        except HoldfastError as error:
            told.append(f"{number} {type(error).__name__}")
    return " ".join(told)


def odd_sections() -> Check:
    """Sections with right checksums and any contents, in any order."""
    path = own_folder() / "run"
    good = sections_of(_whole()[0])

    def check(data: bytes) -> str:
        choices, rng = Choices(data), Random(data)
        parts = list(good)
        for _ in range(1 + choices.below(3)):
            way, at = choices.below(5), choices.below(len(parts))
            kind, payload = parts[at]
            if way < 2:
                parts[at] = (kind, Mutator(rng, [payload], longest=4000)())
            elif way == 2:
                parts[at] = (choices.of(list(Kind)), payload)
            elif way == 3:
                parts.insert(choices.below(len(parts)), (kind, payload))
            else:
                del parts[at]
            if not parts:
                return "nothing"
        with path.open("wb") as file:
            writer = Writer(file)
            for kind, payload in parts:
                writer.add(kind, payload)
            writer.close()
        shown = inspect_capsule(path, max_state=MOST)
        store = open_store("memory://")
        imported = import_run(store, path, max_state=MOST)
        _check_foreign(store, imported.run, shown)
        return f"{imported.status}, {_shown(store, imported.run)}"

    return check


def sections_of(raw: bytes) -> list[tuple[Kind, bytes]]:
    """The sections of a capsule, but its end."""
    from holdfast.capsules.format import read_sections

    class Bytes:
        size = len(raw)

        def read_at(self, place: int, length: int) -> bytes:
            return raw[place : place + length]

    return [
        (part.kind, part.payload)
        for part in read_sections(Bytes())
        if part.kind not in (Kind.END, Kind.SIGNATURE)
    ]


TARGETS = [
    Target("capsule", capsule_bytes, (), make=random_choices, share=30, longest=400, memory=1024 * MEGABYTE),
    Target(
        "forged",
        forged_capsules,
        (CapsuleInvalid,),
        make=random_choices,
        share=12,
        longest=64,
        memory=1024 * MEGABYTE,
        fresh=0.6,
    ),
    Target(
        "sections",
        odd_sections,
        (CapsuleInvalid,),
        make=random_choices,
        share=12,
        longest=64,
        memory=1024 * MEGABYTE,
        fresh=0.6,
    ),
]
