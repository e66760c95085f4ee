# Written by docs/make_stubs.py from holdfast/names.py.

from holdfast.testing.crashing import CrashFailure as CrashFailure
from holdfast.testing.crashing import CrashReport as CrashReport
from holdfast.testing.crashing import crash_everywhere as crash_everywhere
from holdfast.testing.fakes import Answers as Answers
from holdfast.testing.fakes import FakeModel as FakeModel
from holdfast.testing.fakes import answering as answering
from holdfast.testing.judging import RunSeen as RunSeen
from holdfast.testing.ledger import Effect as Effect
from holdfast.testing.ledger import record_effect as record_effect
from holdfast.testing.ledger import recorded_effects as recorded_effects
from holdfast.testing.time_skipping import SkippedTime as SkippedTime
from holdfast.testing.time_skipping import skipping_time as skipping_time
from holdfast.testing.wrapped_store import Crash as Crash
from holdfast.testing.wrapped_store import CrashingStore as CrashingStore
from holdfast.testing.wrapped_store import WrappedStore as WrappedStore
from holdfast.testing.wrapped_store import kill_process as kill_process
from holdfast.testing.wrapped_store import raise_crash as raise_crash

__all__: list[str]
