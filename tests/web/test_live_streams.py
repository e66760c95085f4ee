"""The stream of a live run over connections that are dropped, and over a server that is killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2

from tests.web.test_serve import serving

STEPS = "".join(f"  - {{name: s{n}, shell: 'sleep 0.1', timeout: 30}}\n" for n in range(8))
SLOW = f"workflow: {{name: slow}}\nsteps:\n{STEPS}"


def streamed(api: str, last: str | None, most: int) -> list[dict[str, Any]] | None:
    """The next events after one of them, of a stream that is then dropped; `None` once the run is over."""
    headers = {"accept": "text/event-stream", **({} if last is None else {"last-event-id": last})}
    found: list[dict[str, Any]] = []
    with httpx2.stream("GET", f"{api}/runs/r/events", headers=headers, timeout=60) as answer:
        if answer.status_code == 204:
            return None
        for line in answer.iter_lines():
            if line.startswith("data: {") and line != "data: {}":
                found.append(json.loads(line.removeprefix("data: ")))
            if line == "event: end" or len(found) == most:
                break
    return found


def test_a_live_run_is_followed_over_dropped_connections_and_a_killed_server(tmp_path: Path) -> None:
    """R3.7: every event once and in order."""
    (tmp_path / "slow.yaml").write_text(SLOW)
    words, found = (str(tmp_path / "slow.yaml"), "--store", f"sqlite:///{tmp_path / 'runs.db'}"), list[Any]()
    with serving(tmp_path, *words) as (_, facts):
        httpx2.post(f"{facts['api']}/workflows/slow/runs", json={"run_id": "r"}).raise_for_status()
        while len(found) < 9:
            found += streamed(facts["api"], found[-1]["id"] if found else None, 3) or []
    with serving(tmp_path, *words) as (_, facts):
        while (page := streamed(facts["api"], found[-1]["id"], 3)) is not None:
            found += page
        assert found == httpx2.get(f"{facts['api']}/runs/r/events?limit=500").json()
    assert found[-1]["type"] == "graph.complete" or found[-1]["type"] == "checkpoint.save"


async def followed(address: str) -> list[str]:
    """The ids of all events of a run, over a connection of its own."""
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    request = (
        f"GET /api/v1/runs/r/events HTTP/1.1\r\nhost: {host}:{port}\r\naccept: text/event-stream\r\n\r\n"
    )
    writer.write(request.encode())
    found: list[str] = []
    async for line in reader:
        if line.startswith(b"id: "):
            found.append(line.decode().strip())
        if line == b"event: end\n":
            break
    writer.close()
    return found


def test_200_clients_follow_one_live_run(tmp_path: Path) -> None:
    """Each gets every event once and in order; the journal is read once for all."""
    (tmp_path / "slow.yaml").write_text(SLOW)
    words = (str(tmp_path / "slow.yaml"), "--store", f"sqlite:///{tmp_path / 'runs.db'}")

    async def all_followed(address: str) -> list[list[str]]:
        return await asyncio.gather(*(followed(address) for _ in range(200)))

    with serving(tmp_path, *words) as (_, facts):
        httpx2.post(f"{facts['api']}/workflows/slow/runs", json={"run_id": "r"}).raise_for_status()
        seen = asyncio.run(all_followed(facts["address"]))
        every = httpx2.get(f"{facts['api']}/runs/r/events?limit=500").json()
    assert seen == [[f"id: {event['id']}" for event in every]] * 200
