"""Processes that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def unmeasured(**more: str) -> dict[str, str]:
    """The environment for processes whose coverage nobody needs: measuring makes them several times slower."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**plain, "PYTHONPATH": path, **more}
