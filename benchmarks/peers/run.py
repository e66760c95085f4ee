"""Benchmarks against peers: the same workloads on Holdfast, LangGraph, DBOS, Burr and a raw loop, in one run.

    python benchmarks/peers/run.py --venv DIR --install     make an environment with the peers, and race in it
    python benchmarks/peers/run.py --venv DIR               race in an environment made before
    python benchmarks/peers/run.py --contender holdfast --contender raw --tiny
    python benchmarks/peers/run.py --from race.json --page docs

Contenders take turns, each turn in a process and at a place of its own, in every round; medians and ratios of the
same round are compared, because machines are noisy. The answers are checked, and so is how often each syncs.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
CONTENDERS = ("holdfast", "langgraph", "langgraph_delta", "dbos", "burr", "raw")
SOME = {"langgraph_delta": ("messages",)}
"""Contenders that differ from another in these workloads only."""
BEGIN, END = "<!-- the race begins -->", "<!-- the race ends -->"


def main() -> int:
    given = _parser().parse_args()
    if given.venv is not None:
        _move_into(given.venv.absolute(), given.install)
    elif given.install:
        return _refuse("--install needs --venv DIR, the environment to make")
    sys.path[:0] = [str(HERE), str(SOURCE)]
    from results import Results

    if given.source is not None:
        try:
            results = Results.load(given.source)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return _refuse(f"cannot read {given.source} as an earlier race: {error}")
    else:
        contenders = given.contender or list(CONTENDERS)
        missing = [name for name in contenders if importlib.util.find_spec(name.partition("_")[0]) is None]
        if missing := [name for name in missing if name != "raw"]:
            return _refuse(
                f"not installed here: {', '.join(missing)}; race in an environment of the peers "
                "(--venv DIR --install makes one), or name others with --contender"
            )
        # As pip has done with the peers: else a new process of Holdfast may compile what theirs need not.
        for folder in (HERE, SOURCE):
            compileall.compile_dir(folder, quiet=2)
        results = Race(given, contenders).run()
    return _publish(given, results)


def _publish(given: argparse.Namespace, results: Any) -> int:
    import table
    from chart import svg

    if given.json is not None:
        results.save(given.json)
    if given.page is not None:
        (given.page / "peers.svg").write_text(svg(results))
        page = given.page / "peers.md"
        text = page.read_text() if page.exists() else f"{BEGIN}\n{END}\n"
        before, _, rest = text.partition(BEGIN)
        page.write_text(f"{before}{BEGIN}\n\n{table.page(results)}\n{END}{rest.partition(END)[2]}")
    print(table.page(results))
    print(json.dumps({"turns": len(results.samples), "behind": len(table.behind(results))}))
    return 0


class Race:
    """All turns of all rounds, and the audit."""

    def __init__(self, given: argparse.Namespace, contenders: list[str]) -> None:
        from places import STORES
        from results import Results, machine, versions
        from workloads import WORKLOADS

        self._given, self._contenders = given, contenders
        self._began = time.monotonic()
        self._stores = given.store or list(STORES)
        self._workloads = [WORKLOADS[name] for name in given.workload or WORKLOADS]
        facts = {
            **machine(Path(given.folder or tempfile.gettempdir())),
            **versions(contenders, with_server="postgres" in self._stores),
        }
        sizes = {each.name: each.tiny if given.tiny else each.sizes for each in WORKLOADS.values()}
        steps = {each.name: each.steps(sizes[each.name]) for each in WORKLOADS.values()}
        self._results = Results(facts, {name: list(each) for name, each in sizes.items()}, steps)

    def run(self) -> Any:
        from places import Ground

        with tempfile.TemporaryDirectory(dir=self._given.folder, prefix="holdfast-race-") as name:
            # The server may belong to another user, who has to come by.
            Path(name).chmod(0o755)
            ground = Ground(Path(name))
            try:
                if "postgres" in self._stores:
                    self._results.facts["PostgreSQL"] = ground.ask("SHOW server_version")[0][0]
                    self._results.facts["synchronous_commit"] = ground.ask("SHOW synchronous_commit")[0][0]
                if not self._given.no_audit:
                    self._audit(ground)
                self._rounds(ground)
            finally:
                ground.close()
        return self._results

    def _rounds(self, ground: Any) -> None:
        """Yield the requested rounds, but none that would end after the time limit."""
        end, longest = self._began + 60 * self._given.minutes, 0.0
        for number in range(self._given.rounds):
            begun = time.monotonic()
            if number and begun + longest > end:
                print(f"no time for more than {number} rounds; --minutes gives more", file=sys.stderr)
                break
            self._round(ground, number)
            longest = max(longest, time.monotonic() - begun)
            self._results.facts["rounds"] = str(number + 1)

    def _round(self, ground: Any, number: int) -> None:
        for workload in self._workloads:
            for store in self._stores:
                # Nobody always goes first, or after the same one.
                turned = self._contenders[number % len(self._contenders) :] + self._contenders
                for contender in turned[: len(self._contenders)]:
                    if workload.name in SOME.get(contender, (workload.name,)):
                        self._turn(ground, number, store, workload, contender)

    def _turn(self, ground: Any, number: int, store: str, workload: Any, contender: str) -> None:
        from results import Sample
        from workloads import RESUMES, WARM

        sizes = tuple(self._results.sizes[workload.name])
        with ExitStack() as opened:
            place = opened.enter_context(ground.place(store))
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            answer = Path(folder) / "answer.json"
            command = self._command(contender, workload, place, sizes)
            if workload.name in RESUMES:
                done = subprocess.run([*command, "--stop"], env=_environment(), stdout=subprocess.DEVNULL)
                if done.returncode != -signal.SIGKILL:
                    raise SystemExit(
                        f"{contender} was to be killed in mid-run, and ended with {done.returncode}"
                    )
            if workload.name == WARM:
                elsewhere = opened.enter_context(ground.place(store))
                command += ["--elsewhere", json.dumps(elsewhere._asdict())]
            spawned = ["--answer", str(answer), "--spawned", repr(time.monotonic())]
            done = subprocess.run([*command, *spawned], env=_environment(), stdout=subprocess.DEVNULL)
            if done.returncode or not answer.exists():
                raise SystemExit(f"{contender} failed in {workload.name} on {store}; see above")
            facts = json.loads(answer.read_text())
            sample = Sample(store, workload.name, contender, number, **facts)
        self._results.samples.append(sample)
        print(
            f"round {number + 1}/{self._given.rounds} {workload.name} {store} {contender}: "
            f"{sample.wall * 1e3:.1f} ms, CPU {sample.cpu * 1e3:.1f} ms",
            file=sys.stderr,
        )

    def _audit(self, ground: Any) -> None:
        """Count the syncs; if a peer syncs less, Holdfast also runs with the durability of that peer."""
        from audit import AUDITED, SYNCED, syncs_per_step

        os.environ.update(_environment())
        for store in self._stores:
            for workload in self._workloads:
                if workload.name not in AUDITED:
                    continue
                found = self._results.syncs.setdefault(store, {}).setdefault(workload.name, {})
                for contender in self._contenders:
                    if contender in SOME:
                        continue
                    found[contender] = syncs_per_step(
                        ground,
                        store,
                        workload,
                        lambda place, sizes, c=contender, w=workload: [
                            *self._command(c, w, place, sizes),
                            "--answer",
                            os.devnull,
                        ],
                    )
                    line = f"audit {workload.name} {store} {contender}: {found[contender]:.2f} syncs a step"
                    print(line, file=sys.stderr)
                lax = workload.name == "chain" and any(count < SYNCED for count in found.values())
                if lax and "holdfast_process" not in self._contenders:
                    self._contenders = [*self._contenders, "holdfast_process"]

    def _command(self, contender: str, workload: Any, place: Any, sizes: tuple[int, ...]) -> list[str]:
        turn = [sys.executable, str(HERE / "turn.py"), contender, workload.name]
        return [*turn, "--place", json.dumps(place._asdict()), "--sizes", json.dumps(sizes)]


def _environment() -> dict[str, str]:
    """Return the environment of a turn: Holdfast is this tree, and telemetry is off."""
    quiet = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}
    return {**os.environ, **quiet, "PYTHONPATH": str(SOURCE)}


def _move_into(folder: Path, install: bool) -> None:
    """Continue in this environment, and create it first if requested."""
    python = folder / "bin" / "python"
    if install:
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    if not python.exists():
        raise SystemExit(_refuse(f"{folder} is no environment; --install makes it one"))
    if Path(sys.prefix) != folder:
        arguments = [argument for argument in sys.argv[1:] if argument != "--install"]
        os.execv(python, [str(python), __file__, *arguments])


def _refuse(message: str) -> int:
    print(message, file=sys.stderr)
    return 2


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of rounds; give 1 or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    workloads = ("chain", "messages", "wave", "concurrent", "untouched", "cold", "warm")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--contender", action="append", choices=(*CONTENDERS, "holdfast_process"))
    parser.add_argument("--workload", action="append", choices=workloads)
    parser.add_argument("--store", action="append", choices=("sqlite", "postgres"))
    parser.add_argument("--rounds", type=_rounds, default=5, help="how many turns each has (5)")
    parser.add_argument(
        "--minutes", type=float, default=12.0, help="begin no round that would end later (12)"
    )
    parser.add_argument("--tiny", action="store_true", help="see that it works, in sizes that say nothing")
    parser.add_argument("--no-audit", action="store_true", help="do not count syncs")
    parser.add_argument(
        "--folder", type=Path, help="on which disk to race; by default where temporary files are"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep everything that was measured")
    parser.add_argument("--from", type=Path, dest="source", metavar="FILE", help="show an earlier race again")
    parser.add_argument(
        "--page", type=Path, metavar="DIR", help="write peers.svg and the tables in peers.md there"
    )
    parser.add_argument(
        "--venv", type=Path, metavar="DIR", help="the environment in which the peers are installed"
    )
    parser.add_argument("--install", action="store_true", help="make that environment first")
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_refuse("the race was interrupted; nothing is kept"))
