"""`holdfast serve` and `holdfast ui` in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2


@contextmanager
def serving(
    folder: Path, *words: str, command: str = "serve", **env: str
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A server process, and what it printed when it was ready."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", command, *words, "--port", "0", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **env},
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, f"the server ended with {process.wait()}"
            text += line
        yield process, json.loads(text)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def test_a_server_says_where_it_is_and_ctrl_c_saves_the_runs(folder: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(tmp_path, str(folder), "--store", url) as (process, facts):
        api = facts["api"]
        run = httpx2.post(f"{api}/workflows/review/runs", json={"wait": 60}, timeout=90).json()
        assert run["status"] == "paused"
        assert httpx2.get(f"{api}/ready").json()["status"] == "ok"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)
    with serving(tmp_path, str(folder), "--store", url) as (_, facts):
        again = httpx2.get(f"{facts['api']}/runs/{run['run_id']}").json()
        assert again["status"] == "paused"


def test_another_address_needs_a_token(tmp_path: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", str(folder), "--host", "0.0.0.0", "--port", "0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 3 and "there are no tokens" in done.stderr and "Traceback" not in done.stderr


def test_the_browser_s_link_works_once(tmp_path: Path, folder: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(tmp_path, str(folder), "--store", url, "--no-open", command="ui") as (_, facts):
        assert httpx2.get(f"{facts['api']}/runs").status_code == 401
        with httpx2.Client() as browser:
            assert browser.get(facts["link"]).status_code == 303
            assert browser.get(f"{facts['api']}/runs").status_code == 200
        assert httpx2.get(facts["link"]).status_code == 401


def test_the_commands_name_the_extra_that_is_missing(tmp_path: Path) -> None:
    """Without the extra, those that serve say what to install, and all others work."""
    code = """
import sys
sys.modules |= dict.fromkeys(sys.argv.pop(1).split(","))
from holdfast.__main__ import script
sys.exit(script())
"""

    def done(missing: str, *words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", code, missing, *words]
        return subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, check=False, timeout=100)

    for missing, command in (("starlette", "serve"), ("uvicorn", "ui")):
        refused = done(missing, command, "--port", "0")
        assert refused.returncode == 3 and f"needs the package '{missing}'" in refused.stderr
        assert "pip install 'holdfast[serve]'" in refused.stderr and "Traceback" not in refused.stderr
    assert done("starlette,uvicorn,anyio,mcp", "runs").returncode == 0
