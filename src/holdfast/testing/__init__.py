"""For tests of workflows and of stores: kill them everywhere, and see that nothing is lost and nothing repeated."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.testing.everywhere.crashing import CrashFailure, CrashReport, crash_everywhere
    from holdfast.testing.everywhere.effects import Effect, record_effect, recorded_effects
    from holdfast.testing.everywhere.judging import RunSeen
    from holdfast.testing.fakes import Answers, FakeModel, answering
    from holdfast.testing.invariants import (
        INVARIANTS,
        FileLedger,
        Invariant,
        Ledger,
        Violation,
        WitnessedStore,
        check_run,
    )
    from holdfast.testing.time_skipping import SkippedTime, skipping_time
    from holdfast.testing.wrapped_store import (
        POINTS,
        Crash,
        CrashingStore,
        Point,
        WrappedStore,
        kill_process,
        raise_crash,
    )

_NAMES = {
    "everywhere.crashing": ("CrashFailure", "CrashReport", "crash_everywhere"),
    "everywhere.effects": ("Effect", "record_effect", "recorded_effects"),
    "everywhere.judging": ("RunSeen",),
    "fakes": ("Answers", "FakeModel", "answering"),
    "invariants": (
        "INVARIANTS",
        "FileLedger",
        "Invariant",
        "Ledger",
        "Violation",
        "WitnessedStore",
        "check_run",
    ),
    "time_skipping": ("SkippedTime", "skipping_time"),
    "wrapped_store": (
        "POINTS",
        "Crash",
        "CrashingStore",
        "Point",
        "WrappedStore",
        "kill_process",
        "raise_crash",
    ),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "INVARIANTS",
    "POINTS",
    "Answers",
    "Crash",
    "CrashFailure",
    "CrashReport",
    "CrashingStore",
    "Effect",
    "FakeModel",
    "FileLedger",
    "Invariant",
    "Ledger",
    "Point",
    "RunSeen",
    "SkippedTime",
    "Violation",
    "WitnessedStore",
    "WrappedStore",
    "answering",
    "check_run",
    "crash_everywhere",
    "kill_process",
    "raise_crash",
    "record_effect",
    "recorded_effects",
    "skipping_time",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
