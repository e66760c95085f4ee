"""What a function that is given secrets may ask of the engine: the same as any other, with the secrets left out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from holdfast.engine.driving.context import Context, PauseSignal
from holdfast.flows.world import World
from holdfast.journal.records import Noted


class Discreet(Context):
    """A context that lets no secret through to events, logs, questions and what is remembered."""

    __slots__ = ("_inner", "_world")

    def __init__(self, inner: Context, world: World) -> None:
        self._inner, self._world = inner, world
        super().__init__(inner._host, inner._step, inner.config, inner._is_async)

    @property
    def _beat(self) -> float:
        return self._inner._beat

    @_beat.setter
    def _beat(self, moment: float) -> None:
        self._inner._beat = moment

    @property
    def left(self) -> PauseSignal | None:
        """The pause that left the node."""
        return self._inner.left

    @left.setter
    def left(self, pause: PauseSignal | None) -> None:
        self._inner.left = pause

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """As in every context, without secrets."""
        plain = super().log
        return _DiscreetLog(plain.logger, plain.extra, self._world)

    def emit(self, message: Any = None, /, **data: Any) -> None:
        """As in every context, without secrets."""
        super().emit(self._world.hide(message), **self._world.hide(data))

    def ask(self, prompt: str, **options: Any) -> Any:
        """As in every context, without secrets."""
        return super().ask(self._world.hide(prompt), **self._world.hide(options))

    def ask_all(self, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """As in every context, without secrets."""
        return super().ask_all(self._world.hide(dict(questions)))

    @property
    def is_over(self) -> bool:
        """Whether this attempt is over."""
        return self._inner.is_over

    def _stored_key(self, key: str) -> str:
        """A key as it is stored, without secrets."""
        return str(self._world.hide(super()._stored_key(key)))

    def _noted(self, key: str, value: Any) -> Noted:
        """What is stored under a key, without secrets."""
        return super()._noted(self._world.hide(key), self._world.hide(value))


class _DiscreetLog(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, extra: Any, world: World) -> None:
        super().__init__(logger, extra)
        self._world = world

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log without secrets, those in the traceback included."""
        if not self.isEnabledFor(level):
            return
        text = str(msg) % args if args else str(msg)
        failure = kwargs.pop("exc_info", None)
        error = failure if isinstance(failure, BaseException) else sys.exc_info()[1] if failure else None
        if error is not None:
            text = f"{text}\n{self._world.scrubber.scrub_exception(error)}"
        text, options = self.process(str(self._world.hide(text)), kwargs)
        self.logger.log(level, "%s", text, **options)
