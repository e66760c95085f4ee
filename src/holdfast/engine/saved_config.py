"""The config that a run was saved with: what a workflow file's run takes of it is plain data, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import CodecError
from holdfast.views.plain import MAX_DEPTH

AGAIN = "have the run exported again by whoever has its workflow"
"""The way out where the run is not in a store yet."""

_OWN_FILE = "go on with a workflow file of your own (holdfast resume RUN --workflow FILE)"
_OWN_RUN = "begin a run of your own with what the run holds (holdfast show RUN --state)"

_LEAVES = (type(None), bool, int, float, str)
_FLOW = {"path": str, "digest": str, "source": str, "included": dict, "files": dict}


def has_flow(config: Any) -> bool:
    """Return whether a config says which workflow file its run is of."""
    return isinstance(config, Mapping) and isinstance(config.get("flow"), Mapping)


def check_config(config: Any, way_out: str = "") -> None:
    """Raise `CodecError` unless a workflow file saved in a config, and the options beside it, are plain data.

    What is shown of a definition has to be what runs: keys are text, nothing else, and so nothing looks like something
    that it is not. The config of a Python graph is left to its program. `way_out` says what to do instead, by default
    with a run in a store.
    """
    if not has_flow(config):
        return
    own_file = way_out or f"{_OWN_FILE}, or {AGAIN}"
    check_options(config, way_out)
    _check_plain({"flow": config["flow"]}, own_file)
    _check_flow(config["flow"], "config['flow']", tuple(_FLOW), own_file)


def check_options(config: Any, way_out: str = "") -> None:
    """Raise `CodecError` unless all of a config beside the workflow file in it is plain data.

    That is what is taken from a run that goes on with a workflow file of its owner's.
    """
    rest = {key: value for key, value in config.items() if key != "flow"} if has_flow(config) else config
    _check_plain(rest, way_out or f"{_OWN_RUN}, or {AGAIN}")


def _check_plain(config: Any, way_out: str) -> None:
    todo: list[tuple[Any, str, int]] = [(config, "config", 0)]
    while todo:
        value, place, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise _refusal(place, "is nested too deep to be shown", way_out)
        if type(value) is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise _refusal(
                        place, f"has the key {key!r:.80}, a {_kind(key)}, where only text is taken", way_out
                    )
                todo.append((item, f"{place}[{key!r:.80}]", depth + 1))
        elif type(value) in (list, tuple):
            todo += [(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value)]
        elif type(value) not in _LEAVES:
            raise _refusal(place, f"is a {_kind(value)}, where only plain data is taken", way_out)


def _check_flow(flow: Mapping[str, Any], place: str, known: tuple[str, ...], way_out: str) -> None:
    for key, value in flow.items():
        if key not in known:
            raise _refusal(place, f"has the unknown key {key!r:.80}; known are {', '.join(known)}", way_out)
        if type(value) is not _FLOW[key]:
            raise _refusal(f"{place}[{key!r}]", f"is a {_kind(value)}, not a {_FLOW[key].__name__}", way_out)
    for name, text in flow.get("included", {}).items():
        if type(text) is not str:
            raise _refusal(f"{place}['included'][{name!r:.80}]", f"is a {_kind(text)}, not a str", way_out)
    for name, file in flow.get("files", {}).items():
        inside = f"{place}['files'][{name!r:.80}]"
        if not name or type(file) is not dict:
            raise _refusal(inside, "is not a file with a name", way_out)
        _check_flow(file, inside, ("source", "included"), way_out)


def _refusal(place: str, why: str, way_out: str) -> CodecError:
    return CodecError(f"the saved definition is refused: {place} {why}; {way_out}")


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
