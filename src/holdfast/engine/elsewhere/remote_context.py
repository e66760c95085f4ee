"""What a node may ask while it runs in another process: who it is, and nothing that needs the engine."""

from __future__ import annotations

import collections
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from holdfast.engine.driving.context import Context, ledger_line, logger
from holdfast.errors import HoldfastError

MOST_LINES = 1000
"""How many log messages of one step are brought back, the last ones."""

MOST_SPENT = 10_000
"""How many lines of the ledger one step may bring back."""

_ELSEWHERE = "put it into a node of its own without that executor"
_WAYS_OUT = {
    "ask": _ELSEWHERE,
    "ask_all": _ELSEWHERE,
    "once": "put what must not be repeated into a node of its own",
    "recall": "put what must not be repeated into a node of its own",
    "sleep": _ELSEWHERE,
    "emit": "return what is to be told, or use ctx.log",
    "heartbeat": "give the node a longer timeout",
    "cancelled": "a run that stops does not wait for it",
    "spent": "look at it in a node of its own without that executor",
}


class Unavailable(HoldfastError):
    """A node asked something that cannot be asked from another process."""


class Facts(NamedTuple):
    """Which attempt of which step this is."""

    run_id: str
    step: str
    node: str
    visit: int
    item_key: str | None
    attempt: int
    idempotency_key: str
    config: Mapping[str, Any]
    where: str
    log_level: int

    @classmethod
    def of(cls, context: Context, where: str) -> Facts:
        return cls(
            context.run_id,
            context.step,
            context.node,
            context.visit,
            context.item_key,
            context.attempt,
            context.idempotency_key,
            dict(context.config),
            where,
            logger.getEffectiveLevel(),
        )


class Kept(logging.Handler):
    """Log messages, and lines of the ledger, that are brought back with the step's result."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[tuple[Any, ...]] = []
        self._lines: collections.deque[tuple[int, str]] = collections.deque(maxlen=MOST_LINES)
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append((record.levelno, self.format(record)))
        self._count += 1

    def lines(self) -> list[tuple[int, str]]:
        """What was logged; of too much the end, and how much is left out."""
        left_out = self._count - len(self._lines)
        told = [(logging.WARNING, f"{left_out} earlier messages of this step are left out")]
        return [*(told if left_out else ()), *self._lines]


class RemoteContext:
    """One attempt of one step, as its node sees it from another process.

    It knows what `Context` knows; whatever needs the engine raises `Unavailable`, which names the way out.
    """

    def __init__(self, facts: Facts, kept: Kept) -> None:
        self._facts, self._kept = facts, kept
        # Of its own: what is logged is told where the run is driven, not here.
        self._logger = logging.Logger(logger.name, facts.log_level)
        self._logger.addHandler(kept)

    def __getattr__(self, name: str) -> Any:
        if name in _WAYS_OUT:
            return self._refuse(name)
        if name in Facts._fields and not name.startswith("_"):
            return getattr(self._facts, name)
        raise AttributeError(name)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger; its messages are told where the run is driven, when the step is over."""
        return logging.LoggerAdapter(self._logger, {"run_id": self.run_id, "step": self.step})

    def spend(
        self,
        model: str = "",
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: float | None = None,
        calls: int = 1,
    ) -> None:
        """Write into the run's ledger what this attempt has used up; it is stored when the step is over.

        If this process dies before that, nobody knows of it.
        """
        facts, spent = self._facts, self._kept.spent
        line = ledger_line(facts.step, facts.attempt, model, input_tokens, output_tokens, cost, calls)
        if len(spent) == MOST_SPENT:
            raise Unavailable(
                f"ctx.spend was called {MOST_SPENT} times in {facts.where}; add up what was spent, and say it at once"
            )
        spent.append(tuple(line))

    def _refuse(self, name: str) -> NoReturn:
        raise Unavailable(
            f"ctx.{name} does not work in {self._facts.where}, which has no way back to the run: {_WAYS_OUT[name]}"
        )
