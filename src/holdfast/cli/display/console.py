"""A console of rich behind the gate: styles are its own, texts are made visible."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holdfast.cli.output import ungated, visible


class GatedConsole(Console):
    """Writes to stdout, with nothing in its texts that a terminal would obey."""

    def __init__(self, **options: Any) -> None:
        super().__init__(file=ungated(sys.stdout), highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of something, made visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
