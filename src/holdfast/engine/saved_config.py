"""The config that a run was saved with: what a workflow file's run takes of it is plain data, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import CodecError
from holdfast.views.plain import MAX_DEPTH

_LEAVES = (type(None), bool, int, float, str)
_FLOW = {"path": str, "digest": str, "source": str, "included": dict, "files": dict}


def has_flow(config: Any) -> bool:
    """Return whether a config says which workflow file its run is of."""
    return isinstance(config, Mapping) and isinstance(config.get("flow"), Mapping)


def check_config(config: Any) -> None:
    """Raise `CodecError` unless a workflow file saved in a config, and the options beside it, are plain data.

    What is shown of a definition has to be what runs: keys are text, nothing else, and so nothing looks like something
    that it is not. The config of a Python graph is left to its program.
    """
    if not has_flow(config):
        return
    _check_plain(config)
    _check_flow(config["flow"], "config['flow']", tuple(_FLOW))


def check_options(config: Any) -> None:
    """Raise `CodecError` unless all of a config is plain data, whether a workflow file is saved in it or not."""
    _check_plain(config)
    check_config(config)


def _check_plain(config: Any) -> None:
    todo: list[tuple[Any, str, int]] = [(config, "config", 0)]
    while todo:
        value, place, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise _refusal(place, "is nested too deep to be shown")
        if type(value) is dict:
            for key, item in value.items():
                if type(key) is not str:
                    raise _refusal(
                        place, f"has the key {key!r:.80}, a {_kind(key)}, where only text is taken"
                    )
                todo.append((item, f"{place}[{key!r:.80}]", depth + 1))
        elif type(value) in (list, tuple):
            todo += [(item, f"{place}[{number}]", depth + 1) for number, item in enumerate(value)]
        elif type(value) not in _LEAVES:
            raise _refusal(place, f"is a {_kind(value)}, where only plain data is taken")


def _check_flow(flow: Mapping[str, Any], place: str, known: tuple[str, ...]) -> None:
    for key, value in flow.items():
        if key not in known:
            raise _refusal(place, f"has the unknown key {key!r:.80}; known are {', '.join(known)}")
        if type(value) is not _FLOW[key]:
            raise _refusal(f"{place}[{key!r}]", f"is a {_kind(value)}, not a {_FLOW[key].__name__}")
    for name, text in flow.get("included", {}).items():
        if type(text) is not str:
            raise _refusal(f"{place}['included'][{name!r:.80}]", f"is a {_kind(text)}, not a str")
    for name, file in flow.get("files", {}).items():
        inside = f"{place}['files'][{name!r:.80}]"
        if not name or type(file) is not dict:
            raise _refusal(inside, "is not a file with a name")
        _check_flow(file, inside, ("source", "included"))


def _refusal(place: str, why: str) -> CodecError:
    return CodecError(
        f"the saved definition is refused: {place} {why}; go on with a workflow file of your own (--workflow FILE), or "
        "have the run exported again by whoever has its workflow"
    )


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
