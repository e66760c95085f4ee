"""How numpy arrays and scalars are stored; numpy itself is imported only to rebuild one."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable
from typing import Any

from holdfast.data.budget import MOST_ROWS
from holdfast.errors import CodecError

DTYPE = re.compile(r"[<>|](?:[biufc][0-9]{1,2}|[SU][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[a-zA-Z]{1,2}\])?)")
TEXT_KINDS = "SU"
_MOST_SIZES = 64


def is_array(cls: type) -> bool:
    """Whether `cls` is numpy's array class itself."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and cls is getattr(numpy, "ndarray", None)


def is_scalar(cls: type) -> bool:
    """Whether `cls` is one of numpy's own scalar classes."""
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    return generic is not None and issubclass(cls, generic) and cls.__module__ == "numpy"


def _dtype(text: Any) -> Any:
    try:
        import numpy
    except ImportError:
        raise CodecError("the stored value holds numpy data: pip install numpy") from None
    if not isinstance(text, str) or not DTYPE.fullmatch(text):
        raise CodecError(f"arrays of dtype {text!r} cannot be stored; convert to a list or a numeric array")
    return numpy.dtype(text)


def array_items(array: Any) -> list[Any]:
    """The dtype, the shape and the bytes in C order. Object, structured and void dtypes are refused."""
    _dtype(array.dtype.str)
    if not array.nbytes and rows(array.shape) > MOST_ROWS:
        raise CodecError(
            f"an array of shape {array.shape} has more than {MOST_ROWS:,} rows, and no data in them"
        )
    return [array.dtype.str, list(array.shape), array.tobytes()]


def rows(shape: Iterable[int]) -> int:
    """How many lists, or items, an array without data would be as lists: its sizes up to the first 0."""
    return math.prod(itertools.takewhile(bool, shape))


def array_build(items: list[Any]) -> Any:
    """A new, writable array; refuses a shape that its bytes do not fill."""
    text, shape, raw = items
    dtype = _dtype(text)
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if sizes != shape or len(sizes) > _MOST_SIZES or (not raw and rows(sizes) > MOST_ROWS):
        raise CodecError("the stored array has a shape that no array has")
    if type(raw) is not bytes or math.prod(sizes) * dtype.itemsize != len(raw):
        raise CodecError("the stored array has another size than its data")
    import numpy

    array = numpy.empty(sizes, dtype)
    if raw:
        array[...] = numpy.frombuffer(raw, dtype).reshape(sizes)
    return array


def scalar_items(scalar: Any) -> list[Any]:
    """The dtype and the bytes; text and bytes whole, since `str` and arrays drop trailing NULs."""
    kind = scalar.dtype.kind
    if kind in TEXT_KINDS:
        return [kind, "".join((scalar,)) if kind == "U" else bytes(scalar)]
    _dtype(scalar.dtype.str)
    return [scalar.dtype.str, scalar.tobytes()]


def scalar_build(items: list[Any]) -> Any:
    """The scalar of the stored dtype."""
    text, raw = items
    if text in TEXT_KINDS:
        _dtype(f"|{text}1")
        # Of a number numpy would make as many zeros.
        if type(raw) is not (str if text == "U" else bytes):
            raise CodecError("the stored scalar is another kind of value than it says")
        import numpy

        return numpy.str_(raw) if text == "U" else numpy.bytes_(raw)
    dtype = _dtype(text)
    if dtype.kind in TEXT_KINDS or len(raw) != dtype.itemsize:
        raise CodecError("the stored scalar has another size than its data")
    import numpy

    return numpy.frombuffer(raw, dtype)[0]
