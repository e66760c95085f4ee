"""The workflow files that the documentation shows: each is one that can be run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.workflows.workflow import load_workflow
from tests.docs.test_docs import PAGES, name_of


def blocks() -> list[tuple[str, str]]:
    """Every YAML block of every page, with the page and the line that it begins on."""
    found = []
    for page in PAGES:
        lines, begun = page.read_text("utf-8").splitlines(), None
        for number, line in enumerate(lines):
            if line.strip() == "```yaml":
                begun = number + 1
            elif line.strip() == "```" and begun is not None:
                found.append((f"{name_of(page)}:{begun}", "\n".join(lines[begun:number]) + "\n"))
                begun = None
    return found


def test_there_are_blocks() -> None:
    assert len(blocks()) > 8


@pytest.mark.parametrize(("place", "text"), blocks(), ids=[place for place, _ in blocks()])
def test_a_shown_workflow_is_valid(place: str, text: str, tmp_path: Path) -> None:
    flow = load_workflow(tmp_path / "shown.yaml", text=text, env={"HOME": str(tmp_path)})

    flow.open("memory://")
