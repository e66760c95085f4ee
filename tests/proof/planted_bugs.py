"""Bugs that the proofs have to see: `python -m tests.proof.planted_bugs` plants one after the other.

Each is put into a copy of the source, and the proof that is to see it is run: it has to end with a violation. First
every proof is run with the source as it is: there it has to find nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.proof.planting import Planted, Seen, planted, prove
from tests.proof.simulated.planted import PLANTED as OF_SCHEDULES

POWER, CALLS = "tests.proof.power_cuts", "tests.proof.syscalls"
IN_FILES = ("--store", "file", "--durability", "full")
IN_SQLITE = ("--store", "sqlite", "--durability", "full")
REWRITE = "        if horizon.seq > state.first:\n            self._rewrite(horizon.seq, state)\n"

OF_STORES = (
    Planted(
        "no sync of the journal",
        "acknowledged",
        "stores/files/run_folder.py",
        "            sync(self._journal)\n",
        "            pass\n",
        (POWER, "--scene", "chain", *IN_FILES, "--model", "ordered"),
    ),
    Planted(
        "no sync of the database",
        "acknowledged",
        "stores/sqlite/writing.py",
        "'FULL' if durable else 'NORMAL'",
        "'OFF'",
        (POWER, "--scene", "chain", *IN_SQLITE, "--model", "ordered"),
    ),
    Planted(
        "the folder of a new store is not synced",
        "acknowledged",
        "stores/base.py",
        "            sync_folder(place.parent)\n",
        "            pass\n",
        (POWER, "--scene", "chain", *IN_SQLITE, "--model", "arbitrary", "--sector", "512"),
    ),
    Planted(
        "a torn frame is accepted",
        "corruption",
        "stores/files/frames.py",
        "if last is not None and not is_torn(fd, last):",
        "if last is not None:",
        (POWER, "--scene", "chain", *IN_FILES, "--model", "arbitrary"),
    ),
    Planted(
        "a failed sync counts",
        "acknowledged",
        "stores/files/disk.py",
        "        os.fdatasync(fd)\n",
        "        with suppress(OSError):\n            os.fdatasync(fd)\n",
        (CALLS, "--workflow", "chain", *IN_FILES, "--fault", "eio"),
    ),
    Planted(
        "a short write counts as whole",
        "corruption",
        "stores/files/disk.py",
        "    while rest:\n        written = os.pwrite(fd, rest, position)\n",
        "    while rest:\n        os.pwrite(fd, rest, position)\n        written = len(rest)\n",
        (CALLS, "--workflow", "chain", *IN_FILES, "--fault", "short"),
    ),
    Planted(
        "a prune removes the entries before it has its snapshot",
        "pruning",
        "stores/files/run_folder.py",
        "        self._keep(horizon)\n" + REWRITE,
        REWRITE + "        self._keep(horizon)\n",
        (POWER, "--scene", "housekeeping", *IN_FILES, "--model", "ordered"),
    ),
    Planted(
        "the journal of a pruned run is copied before its snapshot",
        "corruption",
        "stores/files/run_folder.py",
        "            self._keep(snapshot)\n\n    def finish(",
        "            self._snapshots.append(snapshot)\n\n    def finish(",
        (CALLS, "--workflow", "repair", *IN_FILES, "--fault", "kill"),
    ),
    Planted(
        "acknowledged before it is committed",
        "acknowledged",
        "journal/commit.py",
        "                (conflict,) = self._open_store().commit((append,))\n",
        "                conflict = None\n"
        "                threading.Timer(0.01, self._open_store().commit, ((append,),)).start()\n",
        (CALLS, "--workflow", "chain", *IN_FILES, "--fault", "kill"),
    ),
)


def _server(name: str, breaks: str, file: str, old: str, new: str, *kind: str) -> Planted:
    """A bug on the way to a PostgreSQL server and back."""
    return Planted(name, breaks, file, old, new, ("tests.proof.server_faults", *kind, "--seed", "5"))


OF_SERVERS = (
    _server(
        "a server's refusal is ignored",
        "fence",
        "stores/postgres/writing.py",
        "refused = batch.refused(self._written(batch.steps))",
        "refused = batch.refused(self._written(batch.steps)) and set()",
        "--kind",
        "partitions",
        "--times",
        "20",
    ),
    _server(
        "an applied commit is not recognised",
        "recovery",
        "journal/writer.py",
        "ours = [entry for entry in self._unsent if entry.seq == conflict.head]",
        "ours: list[Entry] = []",
        "--kind",
        "statements",
    ),
    _server(
        "an owner never checks whether its lease has expired",
        "finished",
        "stores/postgres/background.py",
        "            self._lapses += 1\n        return self._lapses\n",
        "            pass\n        return 0\n",
        "--kind",
        "partitions",
        "--times",
        "40",
    ),
    _server(
        "a run continues from another history",
        "fence",
        "stores/postgres/writing.py",
        "entry.chain = %(link)b",
        "entry.chain <> ''::bytea",
        "--kind",
        "failover",
    ),
)


def _interrupted(name: str, breaks: str, file: str, old: str, new: str, *where: str) -> Planted:
    """A bug that only an exception between two lines shows."""
    how = ("--first", "--timeout", "8", "--jobs", "1")
    return Planted(name, breaks, file, old, new, ("tests.proof.async_exceptions", *where, *how))


def _at(store: str, shape: str, within: str) -> tuple[str, ...]:
    return ("--store", store, "--shape", shape, "--kind", "interrupt", "--within", within)


SEALED = (
    "            self._is_changing = True\n        except BaseException:\n            track.bases = bases\n"
    "            raise\n        self.seq, self.chain, self._unsent, self._pending = seq, chain, unsent, []\n"
)
OF_INTERRUPTIONS = (
    _interrupted(
        "the chain advances before its entry is kept",
        "corruption",
        "journal/writer.py",
        SEALED,
        "        except BaseException:\n            track.bases = bases\n            raise\n"
        "        self.chain = chain\n        self.seq, self._unsent, self._pending = seq, unsent, []\n",
        *_at("memory", "plain", "journal/writer.py"),
    ),
    _interrupted(
        "a folded record that was not kept is skipped",
        "corruption",
        "journal/writer.py",
        "        self._is_changing = True\n        self.run.updated_at = at = clock.time()\n",
        "        self.run.updated_at = at = clock.time()\n",
        *_at("memory", "plain", "journal/"),
    ),
    _interrupted(
        "a thread's result is lost with its callback",
        "recovery",
        "threads.py",
        "                future.settle()  # A signal's exception may have come in its way, and ended the loop.\n",
        "                pass\n",
        *_at("sqlite", "awaited", "threads.py"),
    ),
    _interrupted(
        "a lock is released on the next line, not in a with block",
        "recovery",
        "threads.py",
        "    with lock: return action(*args, **kwargs)  # fmt: skip  # noqa: E701\n",
        "    lock.__enter__()\n    result = action(*args, **kwargs)\n    lock.__exit__(None, None, None)\n"
        "    return result\n",
        *_at("sqlite", "plain", "journal/commit.py"),
    ),
    _interrupted(
        "waiters of an interrupted leader are not notified",
        "recovery",
        "journal/commit.py",
        "            job.error, job.done = error, True\n    _tell(jobs)\n",
        "            job.error, job.done = error, True\n",
        *_at("memory", "awaited", "journal/commit.py"),
    ),
    _interrupted(
        "the lock of a run's folder outlives an exception",
        "recovery",
        "stores/files/disk.py",
        "    except BaseException:\n        _close(files)\n        raise\n",
        "    except OSError:\n        _close(files)\n        raise\n",
        *_at("file", "plain", "stores/files/run_folder.py"),
    ),
    _interrupted(
        "a transaction outlives an exception",
        "not-stranded",
        "stores/sqlite/writing.py",
        "            roll_back(self.connection)\n            raise\n",
        "            raise\n",
        *_at("sqlite", "plain", "stores/sqlite/writing.py"),
    ),
    _interrupted(
        "a wave is recorded without the gate after it",
        "finished",
        "engine/waves.py",
        "        self._saving.writer.together(end)\n",
        "        end()\n",
        *_at("memory", "gated", "engine/"),
    ),
    _interrupted(
        "an interrupted run stays owned by this process",
        "not-stranded",
        "engine/owner.py",
        'return bool(getattr(execution, "is_over", False))',
        "return False",
        *_at("memory", "asking", "engine/runner.py"),
    ),
)

BUGS = (*OF_STORES, *OF_SCHEDULES, *OF_SERVERS, *OF_INTERRUPTIONS)


def hunt(bugs: Sequence[Planted], jobs: int) -> dict[str, Seen]:
    """Plant each bug and run its proof; by name, how that ended."""

    def one(bug: Planted) -> Seen:
        with planted(bug) as source:
            seen = prove(bug.proof, source)
        mark = "caught" if seen.is_caught else f"MISSED (ended with {seen.code})"
        print(
            f"{mark:>8}  {bug.name}  [{seen.seconds:.0f} s] {seen.finding[:160]}", file=sys.stderr, flush=True
        )
        return seen

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip([bug.name for bug in bugs], pool.map(one, bugs), strict=True))


def fails_unharmed(bugs: Sequence[Planted], jobs: int) -> list[str]:
    """The proofs that find something where no bug is planted, with what they said."""
    proofs = list(dict.fromkeys(bug.proof for bug in bugs))
    with ThreadPoolExecutor(jobs) as pool:
        ends = list(pool.map(prove, proofs))
    return [f"{' '.join(proof)}: {seen.said}" for proof, seen in zip(proofs, ends, strict=True) if seen.code]


def table(bugs: Sequence[Planted]) -> str:
    """The bugs as a Markdown table, as the documentation shows it."""
    lines = ["| planted bug | promise broken | caught by |", "|---|---|---|"]
    lines += [f"| {bug.name} | {bug.breaks} | `python -m {' '.join(bug.proof)}` |" for bug in bugs]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", nargs="*", help="only these")
    parser.add_argument("--list", action="store_true", help="print the table of bugs, and plant none")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--trust", action="store_true", help="do not run the proofs without a bug first")
    given = parser.parse_args()
    bugs = [bug for bug in BUGS if not given.name or bug.name in given.name]
    if given.list:
        print(table(bugs))
        return 0
    if not given.trust and (wrong := fails_unharmed(bugs, given.jobs)):
        print("\n".join(["violations without any bug:", *wrong]), file=sys.stderr)
        return 1
    seen = hunt(bugs, given.jobs)
    missed = [name for name, each in seen.items() if not each.is_caught]
    print(json.dumps({"planted": len(seen), "caught": len(seen) - len(missed), "missed": missed}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
