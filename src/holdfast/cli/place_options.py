"""The options that say where and when a run waits for a worker."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any, TypeVar

import click

from holdfast.errors import HoldfastError

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MOST = 2**31 - 1


def _checked_queue(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from holdfast.engine.queueing import Place

    if value is not None:
        try:
            Place.of(value, 0, None)
        except HoldfastError as error:
            raise click.BadParameter(str(error), ctx, param) from None
    return value


def _checked_priority(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
    if value is not None and not -MOST <= value <= MOST:
        raise click.BadParameter(f"{value} is not from {-MOST} to {MOST}", ctx, param)
    return value


def queue_option(command: Decorated) -> Decorated:
    """Add `--queue NAME`, which is `None` if it is not given."""
    return click.option(
        "--queue",
        metavar="NAME",
        callback=_checked_queue,
        help="The queue whose workers are to drive it; by default the one that it was in, or `default`.",
    )(command)


def priority_option(command: Decorated) -> Decorated:
    """Add `--priority N`, which is `None` if it is not given."""
    return click.option(
        "--priority",
        type=int,
        metavar="N",
        callback=_checked_priority,
        help="Runs of a higher priority begin first; by default the one that it had, or 0.",
    )(command)


def when_options(command: Decorated) -> Decorated:
    """Add `--delay DURATION` and `--at TIME`; `read_when` tells what they mean."""
    delay = click.option(
        "--delay", metavar="DURATION", help="Begin no earlier than that from now: 30s, 1h30m, 2d."
    )
    at = click.option(
        "--at",
        metavar="TIME",
        help="Begin no earlier than then: ISO 8601, in local time unless it says otherwise.",
    )
    return delay(at(command))


def read_when(delay: str | None, at: str | None) -> float | dt.datetime | None:
    """When a run may begin, as `App.submit` takes it."""
    if delay is not None and at is not None:
        raise click.UsageError("give either --delay or --at")
    if delay is not None:
        return _seconds(delay)
    if at is None:
        return None
    try:
        return dt.datetime.fromisoformat(at).astimezone()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"--at {at!r} is not a time such as 2030-01-31T18:00 or 2030-01-31T18:00Z"
        ) from None


def _seconds(text: str) -> float:
    from holdfast.flows.model import seconds

    try:
        return seconds(float(text) if text.strip().replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise click.BadParameter(f"--delay {text!r}: {error}") from None
