"""For tests of workflows and of stores: kill them everywhere, and see that nothing is lost and nothing repeated."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.testing.crashing_store import (
        POINTS,
        Crash,
        CrashingStore,
        Point,
        kill_process,
        raise_crash,
    )
    from holdfast.testing.invariants import INVARIANTS, Invariant, Violation, check_run
    from holdfast.testing.ledger import FileLedger, Ledger, WitnessedStore
    from holdfast.testing.wrapped_store import WrappedStore

_NAMES = {
    "crashing_store": ("POINTS", "Crash", "CrashingStore", "Point", "kill_process", "raise_crash"),
    "invariants": ("INVARIANTS", "Invariant", "Violation", "check_run"),
    "ledger": ("FileLedger", "Ledger", "WitnessedStore"),
    "wrapped_store": ("WrappedStore",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = [
    "INVARIANTS",
    "POINTS",
    "Crash",
    "CrashingStore",
    "FileLedger",
    "Invariant",
    "Ledger",
    "Point",
    "Violation",
    "WitnessedStore",
    "WrappedStore",
    "check_run",
    "kill_process",
    "raise_crash",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
