"""Bytes of stored runs are changed one at a time: always detected, never a wrong state, never a crash of a reader.

A sample of what `python -m tests.crash.flips` does with every byte.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.flips import MEDIA, flips


@pytest.mark.parametrize("kind", MEDIA)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_changed_byte_is_detected_or_changes_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S0.14"""
    caplog.set_level("CRITICAL", "holdfast")
    rng = random.Random(7)
    found = list(flips(kind, tmp_path, lambda size: sorted(rng.sample(range(size), 60)), rng))

    assert [(what, false, where) for what, false, where in found if false] == []
    assert len(found) == 60 and sum(what != "meaningless" for what, *_ in found) > 20
