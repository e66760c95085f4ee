"""Values that come back from their bytes exactly as they were."""

from __future__ import annotations

from holdfast.errors import CodecError
from holdfast.state.codec import Codec, TolerantCodec
from tests.fuzz.choices import Choices, random_choices
from tests.fuzz.making import are_same, value
from tests.fuzz.target import Check, Target, Wrong
from tests.fuzz.targets.decoders import TYPES, Colour, Point


def values() -> Check:
    """Storing awkward values and reading them again: every type, sign and bit is as it was."""
    codec, tolerant = Codec(TYPES), TolerantCodec()

    def check(data: bytes) -> str:
        choices = Choices(data)
        found = value(choices)
        if choices.chance(12):
            found = choices.of((Colour.RED, Colour.BLUE, Point(choices.byte(), "é", [found])))
        raw = codec.encode(found)
        again = codec.decode(raw)
        if not are_same(again, found):
            raise Wrong(f"{found!r} comes back as {again!r}")
        if codec.encode(again) != raw or tolerant.encode(tolerant.decode(raw)) != raw:
            raise Wrong(f"{found!r} has other bytes when it is stored again")
        return type(found).__name__

    return check


TARGETS = [
    Target(
        "values",
        values,
        (CodecError,),
        make=random_choices,
        fresh=0.6,
        share=300,
        longest=300,
    )
]
