"""The command: `python -m tests.fuzz [--target NAME …] [--inputs N | --seconds S] [--seed S] [--jobs N]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.campaign import Summary, Unit, run_campaign
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS
from tests.fuzz.trying import replay

FULL = 10_500_000
"""How many inputs the full form tries in all."""


def main(words: list[str] | None = None) -> int:
    """Fuzz as asked; 1 if anything was found."""
    given = _arguments(words)
    chosen = [TARGETS[name] for name in given.target or TARGETS]
    if given.replay is not None:
        told = replay(chosen[0], given.replay.read_bytes())
        print(told.encode("utf-8", "backslashreplace").decode())
        return int(told.startswith("FOUND"))
    if given.list:
        for target in chosen:
            print(f"{target.name:14} {target.about}")
        return 0
    if given.engine == "atheris":
        from tests.fuzz.guided import guide

        return guide(
            [target for target in chosen if target.is_decoder],
            given.seconds or 60.0,
            given.findings,
            given.seed,
        )
    began = time.monotonic()
    summaries = run_campaign(_units(chosen, given), given.jobs, given.findings)
    return _report(summaries, time.monotonic() - began, given)


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument(
        "--target",
        action="append",
        choices=TARGETS,
        metavar="NAME",
        help="one of the targets; may be repeated",
    )
    parser.add_argument("--list", action="store_true", help="tell which targets there are")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--full", action="store_true", help=f"{FULL:,} inputs in all, as their shares are")
    how.add_argument("--inputs", type=int, metavar="N", help="so many inputs for each target")
    how.add_argument("--seconds", type=float, metavar="S", help="so long for each target")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, metavar="N", help="processes at a time, by default 2")
    parser.add_argument("--engine", choices=("own", "atheris"), default="own")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="try one input of --target")
    parser.add_argument(
        "--findings", type=Path, metavar="DIR", default=Path(tempfile.gettempdir()) / "holdfast-fuzz",
        help="where findings are saved",
    )  # fmt: skip
    given = parser.parse_args(words)
    if given.replay is not None and len(given.target or ()) != 1:
        parser.error("--replay needs one --target")
    if given.engine == "atheris":
        if given.full or given.inputs or given.jobs:
            parser.error("--engine atheris takes --seconds for each target, one at a time")
        if odd := [name for name in given.target or () if not TARGETS[name].is_decoder]:
            parser.error(f"--engine atheris is for decoders, which {', '.join(odd)} is not")
    given.jobs = given.jobs or 2
    return given


def _units(chosen: list[Target], given: argparse.Namespace) -> list[Unit]:
    shares = sum(target.share for target in chosen)
    units = []
    # The dear ones first, so that no process waits at the end for one that began late.
    for target in sorted(chosen, key=lambda target: target.share):
        count = None if given.seconds else given.inputs or 2000
        if given.full:
            count = max(1, FULL * target.share // shares)
        for job in range(given.jobs):
            part = None if count is None else count // given.jobs + (job < count % given.jobs)
            units.append(Unit(target, f"{given.seed}/{job}", part, given.seconds))
    return units


def _report(summaries: dict[str, Summary], seconds: float, given: argparse.Namespace) -> int:
    print(f"{'target':14} {'inputs':>12} {'inputs/CPU s':>13} {'outcomes':>9} {'findings':>9}")
    for name, summary in summaries.items():
        rate = summary.inputs / summary.cpu if summary.cpu else 0
        print(
            f"{name:14} {summary.inputs:12,} {rate:13,.0f} {len(summary.outcomes):9,} {len(summary.findings):9,}"
        )
    total = sum(summary.inputs for summary in summaries.values())
    found = sum(len(summary.findings) for summary in summaries.values())
    print(f"{'all':14} {total:12,} {'':13} {'':9} {found:9,}")
    whole = {
        "inputs": total,
        "findings": found,
        "seconds": round(seconds, 1),
        "seed": given.seed,
        "jobs": given.jobs,
        "targets": [summary.as_json() for summary in summaries.values()],
    }
    print(json.dumps(whole))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
