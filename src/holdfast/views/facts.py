"""Where a run was driven, in words: host, versions, commit, and what of it changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.data.codec import Codec
from holdfast.errors import CodecError
from holdfast.views.plain import CODEC, plain

_KNOWN = ("host", "platform", "python", "holdfast", "packages", "git")
_SHORT = 10


def read_facts(raw: bytes, codec: Codec = CODEC) -> dict[str, Any]:
    """Facts as a journal holds them, as plain data; nothing if there are none, or they cannot be read."""
    if not raw:
        return {}
    try:
        found = plain(codec.decode(raw))
    except CodecError:
        return {}
    return found if isinstance(found, dict) else {}


def place_told(facts: Mapping[str, Any]) -> str:
    """The host and what runs there: `box, Linux 6.1 x86_64, Python 3.12.1, holdfast 1.0`."""
    python, own = facts.get("python"), facts.get("holdfast")
    parts = [facts.get("host"), facts.get("platform"), f"Python {python}" if python else "", ""]
    parts[3] = f"holdfast {own}" if own and own != "unknown" else ""
    return ", ".join(str(part) for part in parts if part)


def code_told(facts: Mapping[str, Any]) -> str:
    """The commit of the code: `commit 1a2b3c4d5e on main, with changes`."""
    git = _mapping(facts.get("git"))
    if not git.get("commit"):
        return ""
    branch = f" on {git['branch']}" if git.get("branch") else ""
    changed = {"True": ", with changes", "False": ", unchanged"}.get(str(git.get("dirty")), "")
    return f"commit {str(git['commit'])[:_SHORT]}{branch}{changed}"


def others_told(facts: Mapping[str, Any]) -> str:
    """The libraries, and what whoever compiled the graph added."""
    libraries = [f"{name} {version}" for name, version in _mapping(facts.get("packages")).items()]
    own = [f"{name}: {value}" for name, value in facts.items() if name not in _KNOWN]
    return ", ".join([*libraries, *own])


def facts_told(facts: Mapping[str, Any]) -> str:
    """All of it on one line."""
    return ", ".join(part for part in (place_told(facts), code_told(facts), others_told(facts)) if part)


def changes_told(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What is different in another place, or of other code: `another host: box, was: tower`."""
    told = []
    for name, value in _flat(after).items():
        known = _flat(before).get(name)
        if known is None and name == "changes":
            if value == "yes":
                told.append("the code has changes that are in no commit")
        elif known != value:
            told.append(f"another {name}: {value}" + (f", was: {known}" if known else ""))
    gone = [name for name in _flat(before) if name not in _flat(after) and name != "changes"]
    return [*told, *(f"no {name} any more" for name in gone)]


def _flat(facts: Mapping[str, Any]) -> dict[str, str]:
    git = _mapping(facts.get("git"))
    found = {name: str(facts[name]) for name in ("host", "platform", "python", "holdfast") if name in facts}
    if git.get("commit"):
        found |= {"commit": str(git["commit"])[:_SHORT], "branch": str(git.get("branch", ""))}
    if git.get("dirty") is not None:
        found["changes"] = "yes" if git["dirty"] else "no"
    libraries = {str(name): str(version) for name, version in _mapping(facts.get("packages")).items()}
    own = {name: str(value) for name, value in facts.items() if name not in _KNOWN}
    return {**found, **libraries, **own}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
