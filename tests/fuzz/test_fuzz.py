"""Fuzzing in short: every target for a short time, planted bugs, and the machinery itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CodecError
from holdfast.journal.records import RECORDS
from holdfast.state.codec import Codec
from tests.fuzz.campaign import Unit, run_campaign
from tests.fuzz.choices import Choices
from tests.fuzz.making import exact, value
from tests.fuzz.minimising import minimised
from tests.fuzz.mutating import Mutator
from tests.fuzz.planted import PLANTED, Planted, hunt
from tests.fuzz.target import Target, Wrong
from tests.fuzz.targets import TARGETS
from tests.fuzz.trying import CORPUS, corpus, run_target

QUICK = {
    "shell-runs": 20, "forged": 20, "sections": 40, "capsule": 60, "file-store": 2, "sqlite-store": 4,
    "cli": 12, "flows": 60, "cron": 200,
    "moments": 100, "urls": 100, "verbs": 200, "differences": 200,
    "bombs": 120, "calls": 60, "suggestions": 60,
}  # fmt: skip
"""How many inputs the dear targets get here; the others get 500."""

SEEN_HERE = (
    "codec",
    "values",
    "records",
    "sealed",
    "marks",
    "ids",
    "facts",
    "frames",
    "compress",
    "arithmetic",
    "shell",
    "json",
    "patches",
    "shown",
    "pickles",
    "bombs",
)
"""The planted bugs that are soon found."""


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in ("cli", "urls")])
def test_a_moment_of_fuzzing_finds_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S0.14, S4.15: what cannot be read is refused as documented, and never taken for something else."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    target = TARGETS[name]

    tally = run_target(target, "short", lambda number: number < QUICK.get(name, 500))

    assert [found.what for found in tally.findings] == []
    assert tally.inputs >= QUICK.get(name, 500)
    assert len(tally.outcomes) > (tally.inputs >= 100)


def test_the_command_tells_counts_and_exits_with_0() -> None:
    done = _command(
        "--target", "marks", "--target", "cli", "--target", "urls", "--inputs", "64", "--jobs", "1"
    )

    told = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert told["inputs"] >= 64 * 3 and told["findings"] == 0
    assert {target["target"] for target in told["targets"]} == {"marks", "cli", "urls"}


@pytest.mark.parametrize(
    "planted", [bug for bug in PLANTED if bug.target in SEEN_HERE], ids=lambda bug: bug.target
)
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    tally = hunt(planted)

    assert len(tally.findings) == 1, f"{planted.what}: nothing found in {tally.inputs} inputs"


def test_a_planted_bug_is_known_for_almost_every_target() -> None:
    without = set(TARGETS) - {bug.target for bug in PLANTED}

    assert without == {"flows", "sections", "shell-text", "urls"}


def _crashing() -> Target:
    def check(data: bytes) -> str:
        if b"boom" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        if b"loop" in data:
            while True:
                pass
        if b"much" in data:
            return str(len(bytearray(1 << 40)))
        if b"lies" in data:
            raise Wrong("a lie")
        if b"x" in data:
            raise CodecError("no")
        return "fine"

    return Target("crashing", lambda: check, (CodecError,), seconds=0.5)


@pytest.mark.parametrize(
    ("trigger", "where"),
    [(b"boom", "crash"), (b"loop", "Hang in "), (b"much", "MemoryError in "), (b"lies", "Wrong in ")],
)
def test_a_crash_a_hang_a_bomb_and_a_lie_are_findings_with_their_input(
    trigger: bytes, where: str, tmp_path: Path
) -> None:
    target = _crashing()
    target = Target(
        "crashing",
        target.open,
        target.refused,
        seeds=lambda: [b"a", b"x", b"--" + trigger + b"--"],
        seconds=0.5,
    )

    summaries = run_campaign([Unit(target, "1", 3, None)], 1, tmp_path)

    (found,) = summaries["crashing"].findings
    assert found.where.startswith(where)
    assert trigger in found.data and (found.data == trigger or trigger in (b"boom", b"loop"))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [found.data]


def test_a_saved_finding_can_be_seen_again(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"1h30m")

    done = _command("--target", "durations", "--replay", str(path))

    assert (done.returncode, done.stdout.strip()) == (0, "fine: about 4")


def test_the_same_seed_makes_the_same_inputs() -> None:
    pool = [b"some text", b"\x93\x01\x02\x03"]
    one, other = (Mutator(Random("s"), list(pool)) for _ in range(2))

    assert [one() for _ in range(300)] == [other() for _ in range(300)]


def test_an_input_is_made_small() -> None:
    assert minimised(b"a long text with a needle and more", lambda data: b"needle" in data) == b"needle"


def test_the_corpora_are_small_and_know_every_kind_of_record() -> None:
    files = [path for path in CORPUS.rglob("*") if path.is_file()]
    codes = {wire[0] for data in corpus(TARGETS["records"]) for wire in _wires(data)}

    assert sum(path.stat().st_size for path in files) < 400_000
    assert codes >= set(RECORDS)


def _wires(data: bytes) -> list[list[object]]:
    try:
        found = ormsgpack.unpackb(data)
    except ValueError:
        return []
    return [wire for wire in found if isinstance(wire, list) and wire] if isinstance(found, list) else []


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=1, max_size=120))
def test_any_value_comes_back_from_its_bytes(data: bytes) -> None:
    codec, found = Codec(), value(Choices(data))

    assert exact(codec.decode(codec.encode(found))) == exact(found)


def _command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize("name", ["records", "snapshots"])
def test_what_real_runs_stored_can_be_read(name: str) -> None:
    """Inputs of an older format would be refused at once, and nothing behind that would be tested."""
    target = TARGETS[name]
    check, inputs = target.open(), sorted((CORPUS / name).iterdir())
    refused = []
    for path in inputs:
        try:
            check(path.read_bytes())
        except target.refused:
            refused.append(path.name)

    assert len(inputs) > 10 and len(refused) <= len(inputs) / 20, "run python -m tests.fuzz.harvest"
