"""Unpickling what strangers may have written: plain data and allowed types, and nothing that it names is run."""

from __future__ import annotations

import io
import pickle
from typing import Any

from holdfast.data.types import Types
from holdfast.errors import CodecError

_SAFE = {
    "builtins": {"set", "frozenset", "bytearray", "complex", "range", "slice", "list", "dict", "tuple"},
    "collections": {"OrderedDict", "defaultdict", "deque", "Counter"},
    "datetime": {"datetime", "date", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID", "SafeUUID"},
    "zoneinfo": {"ZoneInfo"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath"},
    "pathlib._local": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath", "Path", "PurePath"},
}


class Unpickler(pickle.Unpickler):
    """An unpickler that makes only plain data and the types on the allow-list."""

    def __init__(self, data: bytes, types: Types) -> None:
        super().__init__(io.BytesIO(data))
        self._types = types

    def find_class(self, module: str, name: str) -> Any:
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        for known in self._types.classes():
            if (known.__module__, known.__qualname__) == (module, name):
                return known
        raise CodecError(
            f"it names {module}.{name}, which is not on the list of allowed types; "
            "declare it in the state schema or register it with holdfast.register_type"
        )
