"""Holdfast with durability="process": only compared with peers that do not sync each step either."""

from __future__ import annotations

from contenders import holdfast


class Race(holdfast.Race):
    """What a killed process wrote survives; a power cut may cost the last steps."""

    durability = "process"
