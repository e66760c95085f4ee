"""The words that the glossary rules out, and the search for them in source, documentation and examples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

INSTEAD = {
    "adopt|adopts|adopted|adopting|adoption": "promote (a fork), reuse (a result)",
    "anew": "again",
    "cone|cones": "plan",
    "deed|deeds": "record",
    "desk|desks": "pause",
    "drive|drives|driven|driving": "execute, execution",
    "driver|drivers": "owner",
    "fate|fates": "plan, planned step",
    "flow|flows": "workflow",
    "glide|glides|gliding": "fast path",
    "heed|heeds|heeded": "apply",
    "life|lives": "run, execution",
    "linger|lingers|lingering": "idle timeout",
    "lookout|lookouts": "listener",
    "mailbox|mailboxes": "inbox",
    "manners": "options",
    "mend|mends|mended|mending": "repair",
    "moment|moments": "checkpoint, time",
    "obey|obeys|obeyed": "apply",
    "overtaker|overtakers": "new owner",
    "patience|patiently": "timeout, wait",
    "purse|purses": "budget",
    "righted|righting": "repaired",
    "standing|stood": "checkpoint",
    "story|stories": "history",
    "surroundings": "environment",
    "tale|tales": "history",
    "told": "reported, given",
    "take up|takes up|taken up|took up|taking up": "execute, claim",
    "in vain": "wasted",
    "whoever": "who, the caller",
    "wish|wishes|wished": "command, option",
    "world|worlds": "environment",
}
"""Words that are not used, and what is said instead."""

FINE = (
    "hello, world",
    "hello world",
    "name: world",
    "default: world",
    "flow style",
    "data flow",
    "control flow",
    "a letter and",
)
"""Phrases in which such a word is meant as everybody means it."""

OF_OTHERS = {"coming-from-prefect.md": ("flow", "flows"), "comparison.md": ("flow", "flows")}
"""Pages that name what another system calls so."""

_PATTERN = re.compile(rf"\b({'|'.join(word for words in INSTEAD for word in words.split('|'))})\b")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


class Use(NamedTuple):
    """A ruled-out word, and where it stands."""

    path: Path
    line: int
    word: str


def uses(paths: Iterable[Path]) -> Iterator[Use]:
    """Yield each ruled-out word in the files and folders given, parts of names included."""
    for path in sorted(file for each in paths for file in _files(each) if file.name != "glossary.md"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = _CAMEL.sub(" ", line).replace("_", " ").replace("-", " ").lower()
            for phrase in FINE:
                text = text.replace(phrase, "")
            for found in _PATTERN.finditer(text):
                if found[1] not in OF_OTHERS.get(path.name, ()):
                    yield Use(path, number, found[1])


def _files(path: Path) -> Iterable[Path]:
    if path.is_file():
        return [path]
    return [file for ending in ("*.py", "*.md", "*.yaml") for file in path.rglob(ending)]


def everywhere() -> list[Path]:
    """Return the places whose words users and newcomers read."""
    pages = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs", "examples", "src")
    return [ROOT / page for page in pages]


def counted(found: Iterable[Use]) -> dict[str, int]:
    """Count uses by word, the most frequent first."""
    return dict(Counter(use.word for use in found).most_common())
