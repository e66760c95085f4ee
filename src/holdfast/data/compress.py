"""How bodies are made smaller: zstd, alone or as a difference to an earlier body."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.errors import CodecError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STORED, ZSTD, DELTA = 0, 1, 2
SMALLEST = 512
LARGEST = 1 << 30
LONG = 1 << 20
WINDOW_LOG_MIN, WINDOW_LOG_MAX = 10, 30
WINDOW_LOG_ALONE = 27
LEVEL = zstd.CompressionParameter.compression_level
ALONE: dict[int, int] = {LEVEL: 3}


def pack(raw: bytes, base: bytes | None = None) -> tuple[int, bytes]:
    """How `raw` is stored, and the bytes to store; never more than `raw` itself.

    0: as it is (small, or not worth it); 1: zstd; 2: zstd, and `unpack` needs the same `base` again.
    """
    size = len(raw)
    if size < SMALLEST or size > LARGEST:
        return STORED, raw
    if base is None or len(base) < SMALLEST:
        how, small = ZSTD, zstd.compress(raw, options=ALONE)
    else:
        how, small = DELTA, zstd.compress(raw, options=_against(base, size), zstd_dict=_prefix(base))
    return (how, small) if len(small) <= size * 0.9 else (STORED, raw)


def unpack(how: int, data: bytes, base: bytes | None = None) -> bytes:
    """The bytes that `pack` was given; raise `CodecError` for a damaged body, another base, or a bomb."""
    if how == STORED:
        return data
    if how == ZSTD:
        return _unpacked(data, WINDOW_LOG_ALONE, None)
    if how != DELTA:
        raise CodecError(f"cannot read a stored body: it is packed in the unknown way {how!r}")
    if base is None:
        raise CodecError("cannot read a stored body: it is a difference to an earlier one that is not here")
    return _unpacked(data, _window_log(len(base) + _declared(data)), _prefix(base))


def _unpacked(data: bytes, window_log: int, prefix: Any) -> bytes:
    size = _declared(data)
    limits: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
    try:
        reader = zstd.ZstdDecompressor(zstd_dict=prefix, options=limits)
        raw = reader.decompress(data, max_length=size + 1)
    except (zstd.ZstdError, ValueError) as error:
        raise CodecError(f"cannot read a stored body: {error}") from None
    if not reader.eof or reader.unused_data or len(raw) != size:
        raise CodecError("cannot read a stored body: it is cut short or has grown")
    return bytes(raw)


def _declared(data: bytes) -> int:
    """The length that the frame says it has once unpacked."""
    try:
        size = zstd.get_frame_info(data).decompressed_size
    except zstd.ZstdError as error:
        raise CodecError(f"cannot read a stored body: {error}") from None
    if size is None or size > LARGEST:
        raise CodecError(f"cannot read a stored body: it claims {size} bytes, at most {LARGEST} are read")
    return int(size)


def _prefix(base: bytes) -> Any:
    return zstd.ZstdDict(base, is_raw=True).as_prefix


def _window_log(size: int) -> int:
    return max(WINDOW_LOG_MIN, min(WINDOW_LOG_MAX, size.bit_length()))


def _against(base: bytes, size: int) -> dict[int, int]:
    """The window covers both; the checksum tells a wrong base; long matches are searched when it pays."""
    whole = len(base) + size
    parameter = zstd.CompressionParameter
    options: dict[int, int] = {
        LEVEL: 3,
        parameter.window_log: _window_log(whole),
        parameter.checksum_flag: 1,
    }
    if whole > LONG:
        options[parameter.enable_long_distance_matching] = 1
    return options
