"""The HTTP API as its OpenAPI document says it is: requests made from the document, sent to a real server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2

from tests.web.test_serve import serving

CONFIG = """
[parameters]
run_id = ["r1", "r2", "nobody"]
workflow = ["greet", "review", "nothing"]
"path.name" = ["greet", "write", "nothing"]
"""

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "negative_data_rejection"
)


def test_what_the_document_says_holds(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with serving(tmp_path, str(folder), "--store", url) as (_, facts):
        api = facts["api"]
        for run, workflow, inputs in (("r1", "greet", {"name": "Ada"}), ("r2", "review", {})):
            body = {"inputs": inputs, "run_id": run, "wait": 60}
            httpx2.post(f"{api}/workflows/{workflow}/runs", json=body, timeout=90).raise_for_status()
        words = ["run", f"{api}/openapi.json", "--phases", "fuzzing", "-n", "3", "--generation-deterministic"]
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"),
                *words,
                "--checks",
                CHECKS,
                "--warnings",
                "off",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-1_000:]
    assert "Fuzzing" in done.stdout
