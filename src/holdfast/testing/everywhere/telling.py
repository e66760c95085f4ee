"""What a commit stores, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.journal.records import (
    Answered,
    MovedOn,
    Noted,
    OnceStarted,
    Paused,
    Record,
    Resumed,
    RunEnded,
    RunStarted,
    StepFailed,
    StepFinished,
    StepStarted,
)

_MOST = 6


def told(records: Iterable[Record]) -> str:
    """The records in words, those that say nothing to people left out."""
    words = list(dict.fromkeys(_words(records)))
    more = f", and {len(words) - _MOST} more" if len(words) > _MOST else ""
    return ", ".join(words[:_MOST]) + more or "bookkeeping"


def _words(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        match record:
            case RunStarted():
                yield "the run begins"
            case Resumed():
                yield "the run is taken up"
            case StepStarted(step=step):
                yield f"step {step!r} begins"
            case StepFinished(step=step, skipped=skipped):
                yield f"step {step!r} is {'passed over' if skipped else 'finished'}"
            case StepFailed(step=step):
                yield f"step {step!r} failed"
            case MovedOn(step=step, next=following):
                yield f"step {step!r} is finished"
                yield f"step {following!r} begins"
            case Paused(step=step, kind=kind, name=name):
                yield (
                    f"step {step!r} asks {name!r}" if kind == "ask" else f"a pause ({kind}) at step {step!r}"
                )
            case Answered(pause=pause):
                yield f"{pause!r} is answered"
            case Noted(step=step, key=key):
                kind, _, name = key.partition(":")
                yield (
                    f"ctx.{kind}({name!r}) of step {step!r}" if kind in ("once", "sleep") else f"note {key!r}"
                )
            case OnceStarted(step=step, key=key):
                yield f"ctx.once({key!r}) of step {step!r} begins"
            case RunEnded(status=status):
                yield f"the run is {status}"
            case _:
                continue
