"""A short text that changes when a piece of code or data changes."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.plan.byte_code import PYTHON, digest, shallow_fingerprint
from holdfast.plan.description import Description


class Fingerprint(str):
    """A text that is a fingerprint already. As a node's `version` it is taken as it is."""

    __slots__ = ()


def fingerprint(subject: Any) -> str:
    """The fingerprint of a function or of plain data: one or two forms of it, each `form:digest`.

    A function's covers what it does (not its comments, layout, docstrings or annotations), its defaults, what it
    closes over, what a partial or an instance gives it, and the functions, classes and constants of its own package
    or folder that it uses, however indirectly. Where its source is at hand, all versions of Python agree on it
    (`deep`); else it tells of the version that it was made with (`deep3.12`). The second form (`py3.12`) is that of
    older journals.
    """
    if isinstance(subject, Fingerprint):
        return subject
    if subject is None or isinstance(subject, (str, dict)):
        return f"data:{digest(repr(subject))}"
    shallow = shallow_fingerprint(subject)
    holds = isinstance(subject, (functools.partial, type)) or hasattr(subject, "__wrapped__")
    if shallow.startswith("name:") and not holds:
        return shallow
    deep = Description(subject)
    return f"{_form('deep', deep.of_source)}:{digest(deep.text)} {shallow}"


def definition_fingerprint(text: str, functions: Iterable[Any], older: str) -> Fingerprint:
    """The fingerprint of something that is written as data and calls functions; `older` is as journals had the text.

    It has two forms as a function's has.
    """
    functions = list(functions)
    told = [Description(function) for function in functions]
    form = _form("step", all(each.of_source for each in told))
    # It was the fingerprint of a version that was a fingerprint itself, of the text and of byte code.
    before = f"data:{digest(repr(older + ' '.join(map(shallow_fingerprint, functions))))}"
    return Fingerprint(
        f"{form}:{digest(repr((text, [each.text for each in told])))} data:{digest(repr(before))}"
    )


def _form(name: str, of_source: bool) -> str:
    return name if of_source else f"{name}{PYTHON}"


def same_code(one: str, other: str) -> bool:
    """Whether two fingerprints tell of the same code, as far as they can be compared."""
    form = _common(one, other)
    if form is not None:
        return _forms(one)[form] == _forms(other)[form]
    return bool(_of_python(_forms(one)) and _of_python(_forms(other)))


def digest_of(one: str, other: str) -> tuple[str, str]:
    """Two fingerprints, short, as they are told to people who ask what differs."""
    form = _common(one, other)
    parts = (_forms(each) for each in (one, other))
    first, second = (part[form] if form is not None else next(iter(part.values()), "") for part in parts)
    return first[:8], second[:8]


def _forms(text: str) -> dict[str, str]:
    return {form: value for form, _, value in (part.partition(":") for part in text.split(" "))}


def _common(one: str, other: str) -> str | None:
    """The best form that both have."""
    mine, known = _forms(one), _forms(other)
    form = next((form for form in mine if form in known), None)
    # Of code that is only known as byte code, other forms hold byte code too.
    other_python = _of_python(mine) and _of_python(known) and _of_python(mine) != _of_python(known)
    return None if other_python and form not in ("deep", "step") else form


def _of_python(forms: Mapping[str, str]) -> str:
    """The version of Python that fingerprints depend on; empty if on none."""
    return next((found[0] for form in forms if (found := re.findall(r"\d+\.\d+$", form))), "")
