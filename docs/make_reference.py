"""Writes docs/reference/api.md from the docstrings of the public names; `--check` only compares."""

from __future__ import annotations

import argparse
import datetime as dt
import enum
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import holdfast
from holdfast import errors
from holdfast.names import PUBLIC, homes
from holdfast.state.schema import Reducer

PAGE = Path(__file__).parent / "reference" / "api.md"
HEAD = """# Reference

The public names: those of `holdfast`, then those of its packages and modules, then the errors. This page is written by
`docs/make_reference.py` from the docstrings; change those, then run `python docs/make_reference.py`.
"""
GROUPS: dict[str, str] = {
    "Writing graphs": "StateGraph Send Command Retry START END",
    "Running them": "App resume register Outcome Pause Checkpoint RunStatus Context RunInterrupted RunTerminated",
    "State": "State append merge add union keep_last register_type",
    "Policies": "CheckpointPolicy Retention",
    "Functions": "workflow step ask sleep now random uuid",
    "Stores": "open_store",
}
"""The names of the package itself, by what they are for."""

MODULES = {
    "holdfast.stores": "get_store register_store RunInfo",
    "holdfast.events": "Observer CallbackObserver LoggingObserver MultiObserver NoOpObserver register_observer "
    "get_observer",
    "holdfast.tracing": "TraceObserver",
}
"""What modules define themselves."""


PUBLIC_NAMES = {name for package in PUBLIC for name in homes(package)}
HIDDEN = {("State", "view"), ("State", "overlaid"), ("State", "check_untouched"), ("App", "settings")}
"""Members that are there for the engine."""


def groups() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the public names under their headings: those of the package, of its packages and modules, errors last."""
    named = {name for names in GROUPS.values() for name in names.split()}
    rest = [name for name in holdfast.__all__ if name not in named and not is_error(getattr(holdfast, name))]
    for heading, names in {**GROUPS, "Others": " ".join(rest)}.items():
        yield heading, {name: getattr(holdfast, name) for name in names.split()}
    packages = {name: " ".join(homes(name)) for name in PUBLIC if name != "holdfast"}
    for module, names in {**packages, **MODULES}.items():
        found = {name: getattr(importlib.import_module(module), name) for name in names.split()}
        yield f"`{module}`", {name: item for name, item in found.items() if name not in holdfast.__all__}
    kinds = {name: kind for name, kind in vars(errors).items() if is_error(kind)}
    yield "Errors", dict(sorted(kinds.items(), key=lambda pair: (pair[0] != "HoldfastError", pair[0])))


def is_error(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, holdfast.HoldfastError)


def describe(name: str, item: Any) -> Iterator[str]:
    """Yield the entry of one name: heading, signature, docstring, and the members of a class."""
    yield f"### `{name}`"
    if isinstance(item, str):
        yield f"`{name} = {item!r}`"
        yield constant_doc(name, item)
    elif isinstance(item, Reducer):
        yield constant_doc(name, item)
    elif isinstance(item, type):
        yield from describe_class(name, item)
    else:
        yield block(name, item)
        yield inspect.getdoc(item) or ""


def describe_class(name: str, item: type) -> Iterator[str]:
    if issubclass(item, enum.Enum):
        yield inspect.getdoc(item) or ""
        yield ", ".join(f"`{member.value}`" for member in item)
        return
    if issubclass(item, BaseException):
        yield inspect.getdoc(item) or ""
        yield f"A kind of `{item.__mro__[1].__name__}`."
        return
    if typing.is_typeddict(item):
        yield inspect.getdoc(item) or ""
        yield "Keys: " + ", ".join(f"`{key}`" for key in item.__annotations__)
        return
    if "__init__" in vars(item) and not is_protocol(item) and name not in ("App", "Context"):
        yield block(name, item)
    yield inspect.getdoc(item) or ""
    for member, value in members_of(item).items():
        if not member.startswith("_") and (name, member) not in HIDDEN:
            yield from describe_member(member, value)


def members_of(item: type) -> dict[str, Any]:
    """The members of a class, with those of the parts that it is put together of, which have no name of their own."""
    parts = [base for base in item.__mro__[1:] if base.__module__.startswith("holdfast.")]
    inner = [base for base in parts if base.__name__ not in PUBLIC_NAMES and not is_protocol(base)]
    return {**vars(item), **{name: value for base in inner for name, value in vars(base).items()}}


def is_protocol(item: type) -> bool:
    return bool(getattr(item, "_is_protocol", False))


def describe_member(member: str, value: Any) -> Iterator[str]:
    function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
    if isinstance(function, property):
        yield f"**`.{member}`**: {inspect.getdoc(function)}"
    elif inspect.isfunction(function) and inspect.getdoc(function) and function.__name__ == member:
        yield block(f".{member}", function)
        yield inspect.getdoc(function) or ""


def block(name: str, item: Any) -> str:
    """A call as code, one parameter a line where it is long."""
    prefix = "async " if inspect.iscoroutinefunction(item) or inspect.isasyncgenfunction(item) else ""
    parameters = list(inspect.signature(item).parameters.values())
    if name.startswith("."):
        parameters = parameters[1:]
    parameters = [parameter for parameter in parameters if not parameter.name.startswith("_")]
    shown: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        shown.append(parameter_text(parameter))
    call = f"{prefix}{name}({', '.join(shown)}){returned(item)}"
    if len(call) > 100:
        call = f"{prefix}{name}(\n" + "".join(f"    {text},\n" for text in shown) + f"){returned(item)}"
    return f"```text\n{call}\n```"


def returned(item: Any) -> str:
    annotation = inspect.signature(item).return_annotation
    return f" -> {annotation}" if isinstance(annotation, str) and not isinstance(item, type) else ""


def parameter_text(parameter: inspect.Parameter) -> str:
    """A parameter with its type and default. Only plain defaults are shown: others differ between machines."""
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    annotation = parameter.annotation
    text = stars + parameter.name
    if annotation is not parameter.empty:
        text += f": {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"
    default = parameter.default
    if default is parameter.empty:
        return text
    if isinstance(default, type):
        return f"{text} = {default.__name__}"
    if isinstance(default, str):
        return f'{text} = "{default}"'
    return (
        f"{text} = {default!r}"
        if isinstance(default, (int, float, tuple, dt.timedelta, type(None)))
        else f"{text} = …"
    )


def constant_doc(name: str, value: Any) -> str:
    """The text that follows a constant in its module."""
    for module in ("holdfast.values", "holdfast.state.schema"):
        source = inspect.getsource(sys.modules[module])
        found = re.search(rf'^{name} = .*\n"""(.*?)"""', source, flags=re.MULTILINE)
        if found:
            return found[1]
    raise SystemExit(f"{name} has no text below it")


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    for heading, names in groups():
        if names:
            parts.append(f"## {heading}\n")
            for name, item in names.items():
                parts += [f"{part}\n" for part in describe(name, item) if part]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if something is not up to date"
    )
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        raise SystemExit(f"docs/reference/{PAGE.name} is not up to date; run: python docs/make_reference.py")


if __name__ == "__main__":
    main()
