"""Kills `holdfast run` of the example workflows at random times and resumes until done.

    python -m tests.crash.examples --times 100

Every run must end with the output of an undisturbed one, and no step that its journal knew as finished when the
process was killed may be found at work again in the ledger, which the steps write themselves.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.journal.journal import Journal
from holdfast.journal.records import StepFinished
from holdfast.state.codec import Codec
from holdfast.stores import open_store
from tests.processes import unmeasured

EXAMPLES = Path(__file__).parents[2] / "examples" / "workflows"
ANSWERS = {"gate": "publish"}
NAMES = ("loop", "dag", "for-each", "gate", "nested")


@dataclass
class Trial:
    """One example in a folder of its own."""

    name: str
    folder: Path
    kills: int = 0
    twice: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'runs.db'}"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        manners = ["--no-interactive"] if arguments[0] != "show" else []
        environment = unmeasured(EXAMPLE_LEDGER=str(self.folder / "ledger"))
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments, "--store", self.url, "--json", *manners],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=self.folder,
        )

    def command(self) -> list[str]:
        """What has to be called next: the run itself, a resume, a resume with the answer, or a look at its end."""
        store = open_store(self.url)
        try:
            known = store.runs(run="r")
            if not known:
                return ["run", str(EXAMPLES / f"{self.name}.yaml"), "--run-id", "r"]
            if known[0].status == "completed":
                return ["show", "r"]
            answer = ANSWERS.get(self.name)
            given = ["--answer", answer] if known[0].status == "paused" and answer else []
            return ["resume", "r", *given]
        finally:
            store.close()

    def finished(self) -> set[str]:
        """The steps that the journal knows as finished."""
        store = open_store(self.url)
        try:
            if not store.runs(run="r"):
                return set()
            journal = Journal(store)
            _, entries = journal.history(journal.info("r"), Codec())
            found = [record for _, records in entries for record in records]
            return {record.step for record in found if isinstance(record, StepFinished)}
        finally:
            store.close()

    def ledger(self) -> list[str]:
        path = self.folder / "ledger"
        return [line.removeprefix("r:") for line in path.read_text().splitlines()] if path.exists() else []

    def until_done(self, kills: int, chance: random.Random, seconds: float = 1.0) -> object:
        """Return the run's output after this many kills at random times; undisturbed it takes about `seconds`."""
        while True:
            before, known = len(self.ledger()), self.finished()
            process = self.start(*self.command())
            if self.kills < kills:
                time.sleep(chance.uniform(0.4, 1.0) * seconds)
                if process.poll() is None:
                    self.kills += 1
                process.send_signal(signal.SIGKILL)
            out, errors = process.communicate()
            self.twice += [step for step in self.ledger()[before:] if step in known]
            if process.returncode == 0:
                return json.loads(out)["output"]
            if process.returncode not in (4, -signal.SIGKILL):
                raise AssertionError(f"{self.name}: exit {process.returncode}\n{out}\n{errors}")


def trial(name: str, kills: int, seed: int, folder: Path) -> Trial:
    """Kill an example some times; raise if anything is lost or done twice."""
    chance = random.Random(seed)
    (folder / "calm").mkdir(parents=True)
    (folder / "wild").mkdir()
    begun = time.monotonic()
    wanted = Trial(name, folder / "calm").until_done(0, chance)
    seconds = time.monotonic() - begun
    wild = Trial(name, folder / "wild")
    found = wild.until_done(kills, chance, seconds)
    if found != wanted:
        raise AssertionError(f"{name} (seed {seed}): {found!r} instead of {wanted!r}")
    if wild.twice:
        raise AssertionError(f"{name} (seed {seed}): finished steps ran again: {wild.twice}")
    return wild


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--times", type=int, default=100, help="how many kills in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    killed = rounds = 0
    while killed < options.times:
        name = NAMES[rounds % len(NAMES)]
        with tempfile.TemporaryDirectory() as folder:
            killed += trial(name, 4, options.seed + rounds, Path(folder)).kills
        rounds += 1
        print(f"{killed} kills in {rounds} runs, {name}: same output, nothing finished ran again", flush=True)


if __name__ == "__main__":
    main()
