"""The results of a race: samples, the audit, and the facts of the machine, with medians and ratios."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sqlite3
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

US = "holdfast"
FLOOR = "raw"
NAMES = {
    "holdfast": "Holdfast",
    "holdfast_process": "Holdfast, process",
    "langgraph": "LangGraph",
    "langgraph_delta": "LangGraph, delta",
    "dbos": "DBOS",
    "burr": "Burr",
    "raw": "raw loop",
}


class Sample(NamedTuple):
    """One turn; times in seconds."""

    store: str
    workload: str
    contender: str
    round: int
    wall: float
    cpu: float
    written: int
    used: int


@dataclass
class Results:
    """Everything that the table and the chart need."""

    facts: dict[str, str]
    sizes: dict[str, list[int]]
    steps: dict[str, int]
    samples: list[Sample] = field(default_factory=list)
    syncs: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    """By store, workload and contender: per step."""

    def of(self, store: str, workload: str, contender: str, figure: str) -> list[float]:
        """Return the figures of a contender, round by round."""
        return [
            getattr(sample, figure)
            for sample in self.samples
            if (sample.store, sample.workload, sample.contender) == (store, workload, contender)
        ]

    def median(self, store: str, workload: str, contender: str, figure: str) -> float | None:
        figures = self.of(store, workload, contender, figure)
        return statistics.median(figures) if figures else None

    def spread(self, store: str, workload: str, contender: str, figure: str) -> float:
        """Return half of the range, as a fraction of the median."""
        figures = self.of(store, workload, contender, figure)
        return (max(figures) - min(figures)) / 2 / statistics.median(figures)

    def ratio(self, store: str, workload: str, contender: str, figure: str) -> float | None:
        """Return the ratio to Holdfast: the median of the ratios within each round."""
        theirs = self.of(store, workload, contender, figure)
        ours = self.of(store, workload, US, figure)
        pairs = [(a, b) for a, b in zip(theirs, ours, strict=False) if b]
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def contenders(self) -> list[str]:
        """Return the contenders, Holdfast first and the raw loop last."""
        seen = {sample.contender for sample in self.samples}
        return [name for name in NAMES if name in seen]

    def stores(self) -> list[str]:
        return _in_order(sample.store for sample in self.samples)

    def workloads(self) -> list[str]:
        seen = {sample.workload for sample in self.samples}
        return [name for name in self.sizes if name in seen]

    def save(self, path: Path) -> None:
        data = {**asdict(self), "samples": [sample._asdict() for sample in self.samples]}
        path.write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        data = json.loads(path.read_text())
        return cls(**{**data, "samples": [Sample(**sample) for sample in data["samples"]]})


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def machine(folder: Path) -> dict[str, str]:
    """Return the facts that the figures depend on."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}, {_file_system(folder)}",
        "Python": platform.python_version(),
    }


def versions(contenders: Iterable[str], *, with_server: bool) -> dict[str, str]:
    """Return the versions of the contenders."""
    packages = {
        "holdfast": (),
        "langgraph": ("langgraph", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres"),
        "dbos": ("dbos",),
        "burr": ("burr",),
    }
    found: dict[str, str] = {"Holdfast": "this tree"}
    for contender in contenders:
        for package in packages.get(contender, ()):
            found[package] = importlib.metadata.version(package)
    import apsw

    found["SQLite of the standard library (LangGraph, DBOS, Burr)"] = sqlite3.sqlite_version
    found["SQLite of apsw (Holdfast, raw loop)"] = apsw.sqlite_lib_version()
    if with_server:
        found["psycopg"] = importlib.metadata.version("psycopg")
    return found


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    command = ["stat", "-f", "-c", "%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
