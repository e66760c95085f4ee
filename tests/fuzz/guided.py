"""Coverage-guided fuzzing of the decoders with atheris, each in a process of its own; it needs the extra `fuzz`."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.trying import CORPUS

MISSING = "coverage-guided fuzzing needs the package atheris: pip install 'holdfast[fuzz]'"
_STATISTIC = re.compile(r"stat::(\w+):\s+(\d+)")


def guide(
    targets: Sequence[Target], seconds: float, findings: Path, seed: str, keep_in: Path | None = None
) -> int:
    """Fuzz each target for so long; 1 if anything was found. `keep_in` keeps the inputs that cover more."""
    if importlib.util.find_spec("atheris") is None:
        sys.exit(MISSING)
    found = 0
    print(f"{'target':14} {'inputs':>12} {'new inputs':>11} {'findings':>9}")
    for target in targets:
        with tempfile.TemporaryDirectory() as folder:
            inputs, bad = _run(target, seconds, Path(folder), findings, seed)
            fresh = list((Path(folder) / "corpus").iterdir())
            if keep_in is not None:
                shutil.copytree(Path(folder) / "corpus", keep_in / target.name, dirs_exist_ok=True)
        found += bad
        print(f"{target.name:14} {inputs:12,} {len(fresh):11,} {bad:9,}", flush=True)
    return 1 if found else 0


def _run(target: Target, seconds: float, folder: Path, findings: Path, seed: str) -> tuple[int, int]:
    findings.mkdir(parents=True, exist_ok=True)
    corpus, known = folder / "corpus", CORPUS / target.name
    corpus.mkdir()
    for number, data in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    command = [
        sys.executable, "-m", "tests.fuzz.guided", target.name, f"-max_total_time={round(seconds)}",
            f"-max_len={target.longest}",
        "-print_final_stats=1", f"-seed={sum(seed.encode()) or 1}", f"-artifact_prefix={findings}/{target.name}-",
        f"-timeout={round(target.seconds * 4)}", f"-rss_limit_mb={(target.memory >> 20) + 1024}", str(corpus),
        *([str(known)] if known.is_dir() else []),
    ]  # fmt: skip
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    told = dict(_STATISTIC.findall(done.stderr))
    if done.returncode != 0:
        print(done.stderr[-3000:], file=sys.stderr)
    return int(told.get("number_of_executed_units", 0)), int(done.returncode != 0)


def main(words: list[str]) -> None:
    """One target, fuzzed by atheris: `python -m tests.fuzz.guided TARGET [LIBFUZZER OPTION …] FOLDER …`."""
    try:
        import atheris
    except ImportError:
        sys.exit(MISSING)
    with atheris.instrument_imports(include=["holdfast"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[words[1]]
    check = target.open()

    def one(data: bytes) -> None:
        with contextlib.suppress(target.refused):
            check(data)

    atheris.Setup([words[0], *words[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
