"""Small journals for the store tests, and programs that use a store from processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast.stores.base import Store
from holdfast.testing.contract.writing import add, create, entry, info, seqs, snapshot
from tests.processes import unmeasured

__all__ = ["add", "create", "entry", "info", "seqs", "snapshot"]

SOURCE = Path(next(iter(holdfast.__path__))).parent


PRELUDE = """
import sys
from holdfast.stores import open_store
from holdfast.stores.base import Append, Entry
from tests.stores.journals import add, create, entry, info, seqs
store = open_store(sys.argv[1])
"""


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    """Run `program` in a process of its own, with `store` opened from the first argument."""
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unmeasured(),
    )


def finish(process: subprocess.Popen[str]) -> str:
    """What the program printed; fails if it failed."""
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return output


APPEND_FOREVER = """
create(store, "r")
seq = 1
while True:
    assert add(store, "r", seq) is None
    seq += 1
    print(seq, flush=True)
"""

HAMMER = """
name, rounds = sys.argv[2], int(sys.argv[3])
create(store, name)
while len(store.runs()) < 3:
    pass
won = []
for seq in range(1, rounds):
    assert add(store, name, seq) is None
    head = store.checkpoints("contested", limit=1)[0].seq
    if add(store, "contested", head) is None:
        won.append(head + 1)
store.close()
print(*won)
"""


def killed_while_appending(url: str) -> int:
    """The last seq that a process, killed in the middle of appending, saw acknowledged."""
    process = start(APPEND_FOREVER, url)
    assert process.stdout is not None and process.stderr is not None
    acknowledged = 0
    for line in process.stdout:
        acknowledged = int(line)
        if acknowledged == 60:
            process.send_signal(signal.SIGKILL)
    process.stdout.close()
    process.stderr.close()
    assert process.wait() == -signal.SIGKILL
    return acknowledged


def hammered(store: Store, rounds: int = 300) -> None:
    """Two processes extend a run each and fight over a third; every append must be accounted for."""
    create(store, "contested")
    names = ["left", "right"]
    outputs = [finish(process) for process in [start(HAMMER, store.url, name, str(rounds)) for name in names]]

    won = sorted(int(seq) for output in outputs for seq in output.split())
    assert seqs(store, "contested") == [1, *won] == list(range(1, len(won) + 2))
    for name in names:
        assert seqs(store, name) == list(range(1, rounds + 1))
