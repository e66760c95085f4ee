"""JSON that comes from outside and goes there: only what can be stored and read by others."""

from __future__ import annotations

import json
import math
from typing import Any

from holdfast.flows.errors import StepFailed


def read_json(text: str | bytes) -> Any:
    """The data that a text is; a `ValueError` says why it is none."""
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_json(value: Any, field: str) -> bytes:
    """Data as JSON; what JSON has no way to write is refused with the field that it is for."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StepFailed(f"{field}: this cannot be sent as JSON: {error}") from None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large a number")
    return number
