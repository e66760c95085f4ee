"""Cuts the power at every point of recorded runs: `python -m tests.proof.power_cuts --full`.

A run is recorded: what it writes, syncs, creates, renames and removes, in order, and when it was confirmed that
something is safe. For each point the images that a power cut may leave on the disk are built (see
`tests.proof.power.images`), opened, read and verified; some are checked with `fsck`, some are resumed. With
durability "full" everything acknowledged is there; with "process" what is there is a beginning, or is reported as
damaged; nothing that was never written is ever shown.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from tests.crash.harness import Case, in_child
from tests.invariants import CORRUPTION, FileLedger, Violation
from tests.proof.places import DURABILITIES, STORES, Site, recover, scratch, url_in
from tests.proof.power.disk import Disk, Image, moments
from tests.proof.power.images import MODELS, SECTORS, images
from tests.proof.power.opening import Expected, examine, examine_reported, put
from tests.proof.power.scenes import SCENES, recorded


class Job(NamedTuple):
    """One recording, looked at in one way."""

    scene: str
    scheme: str
    durability: str
    model: str
    sector: int
    images: int
    """How many random ones there are at each moment; 0 for the edges alone."""
    seed: int
    fsck_every: int = 10
    resume_every: int = 40
    moment: int | None = None
    stride: int = 1
    """Only every so many moments are looked at."""
    keep: str = ""
    """Where images that break a promise are kept."""

    @property
    def name(self) -> str:
        return f"{self.scene} {self.scheme} {self.durability} {self.model} {self.sector}"

    @property
    def may_report(self) -> bool:
        """Return whether an image may report damage: a torn write cannot be distinguished from a lost one."""
        broken = self.model in ("torn", "stale") or (self.durability == "process" and self.model != "ordered")
        return broken and self.scheme == "file"


@dataclass
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.violations += other.violations


def cut_power(job: Job) -> Tally:
    """All images of one job."""
    tally = Tally()
    with scratch() as root:
        case = Case(job.scene, job.scheme, job.durability)
        recording, wanted = recorded(root / "recorded", case)
        look = _Look(job, root, wanted, tally)
        for disk in moments(recording):
            tally.counts["moments"] += 1
            if disk.at == job.moment or (job.moment is None and (disk.at + job.seed) % job.stride == 0):
                dice = random.Random(f"{job.seed} {disk.at}")
                expected = Expected(disk.lines)
                for image in images(disk, job.model, job.sector, job.images, dice):
                    look.at(image, disk, expected)
    return tally


class _Look:
    """Opens images, each once."""

    def __init__(self, job: Job, root: Path, wanted: str, tally: Tally) -> None:
        self.job, self.root, self.wanted, self.tally = job, root, wanted, tally
        self.home = root / "image" / "home"
        self._seen: set[bytes] = set()
        self._intact = 0

    def at(self, image: Image, disk: Disk, expected: Expected) -> None:
        digest = _digest(image, len(disk.lines))
        if digest in self._seen:
            return
        self._seen.add(digest)
        job, counts = self.job, self.tally.counts
        counts["images"] += 1
        put(image, self.home)
        resumes = self._intact % job.resume_every == job.resume_every // 4 and not expected.horizons
        check = resumes or counts["images"] % job.fsck_every == 0
        counts["checked with fsck"] += check
        found = examine(self.home, job.scheme, expected, check=check)
        self._intact += not found
        if found and job.may_report and all(one.invariant == CORRUPTION for one in found):
            counts["damaged, and reported"] += 1
            found = examine_reported(self.home, job.scheme, expected)
        elif resumes and not found:
            counts["resumed"] += 1
            put(image, self.home)
            found = self._resume(disk)
        if found and job.keep:
            put(image, Path(job.keep) / f"{job.name} {disk.at} {digest.hex()}".replace(" ", "-"))
        self.tally.violations += [f"{job.name} --seed {job.seed} --moment {disk.at}: {one}" for one in found]

    def _resume(self, disk: Disk) -> list[Violation]:
        """Take the run up in a process of its own, with what the ledger knew when the power failed."""
        job = self.job
        workflow = "pausing" if job.scene == "housekeeping" else job.scene
        site = Site.__new__(Site)
        site.case, site.root, site.home = Case(workflow, job.scheme, job.durability), self.root, self.home
        site.url = url_in(self.home, job.scheme)
        site.ledger = FileLedger(self.root / "image" / "ledger", sync=False)
        site.ledger.path.write_text("")
        if job.durability == "full" and job.scene != "housekeeping":
            site.ledger.path.write_text("".join("\t".join(line) + "\n" for line in disk.lines))
        site.result, site.found = self.root / "image" / "result.json", self.root / "image" / "violations"
        site.found.unlink(missing_ok=True)
        code = in_child(lambda: recover(site, self.wanted))
        if code or not site.found.exists():
            return [Violation(CORRUPTION, f"the resume ended with {code}")]
        return [Violation(CORRUPTION, one) for one in site.violations()]


def _digest(image: Image, lines: int) -> bytes:
    digest = hashlib.blake2b(repr((image.folders, lines)).encode(), digest_size=16)
    for name, content in sorted(image.files.items()):
        digest.update(f"{name} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()


def main() -> int:
    given = _given()
    logging.getLogger("holdfast").disabled = True  # What it warns of is what is looked for here.
    jobs = [
        Job(
            *(scene, scheme, durability, model, sector, given.images, given.seed),
            moment=given.moment,
            stride=given.stride,
            keep=given.keep,
        )
        for scene in given.scene or SCENES
        for scheme in given.store or STORES
        for durability in given.durability or DURABILITIES
        for model in given.model or MODELS
        for sector in given.sector or (SECTORS if model == "arbitrary" else SECTORS[:1])
    ]
    total, begun = Tally(), time.monotonic()
    by_model: Counter[str] = Counter()
    with ProcessPoolExecutor(given.jobs, get_context("fork")) as pool:
        pending = {pool.submit(cut_power, job): job for job in jobs}
        for number, done in enumerate(as_completed(pending), 1):
            job, tally = pending[done], done.result()
            total.add(tally)
            by_model[f"{job.scheme} {job.durability} {job.model}"] += tally.counts["images"]
            line = f"{number}/{len(jobs)} {job.name}: {tally.counts['images']} images"
            rate = total.counts["images"] / (time.monotonic() - begun)
            print(f"{line}, {len(tally.violations)} violations ({rate:.0f}/s)", file=sys.stderr, flush=True)
            for violation in tally.violations[:20]:
                print(f"  {violation}", file=sys.stderr, flush=True)
    _report(total, by_model, given.seed, time.monotonic() - begun)
    return 1 if total.violations else 0


def _report(total: Tally, by_model: Counter[str], seed: int, seconds: float) -> None:
    print("images")
    for name, count in sorted(by_model.items()):
        print(f"  {name:32} {count:8}")
    print("in all")
    for name, count in total.counts.items():
        print(f"  {name:32} {count:8}")
    for violation in total.violations:
        print(f"VIOLATION {violation}")
    figures = {**total.counts, "violations": len(total.violations), "seed": seed, "seconds": round(seconds)}
    print(json.dumps(figures))


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scene", action="append", choices=SCENES)
    parser.add_argument("--store", action="append", choices=STORES)
    parser.add_argument("--durability", action="append", choices=DURABILITIES)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--sector", action="append", type=int, choices=SECTORS)
    parser.add_argument("--moment", type=int, help="only after so many happenings")
    parser.add_argument("--keep", default="", help="a folder for the images that break a promise")
    parser.add_argument("--stride", type=int, default=1, help="only at every so many moments")
    parser.add_argument("--images", type=int, default=3, help="random ones at each moment")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--full", action="store_true", help="everything: the default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes at a time")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
