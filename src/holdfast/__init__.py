"""Holdfast: workflows that journal every step before and after it runs, and resume after anything."""

from holdfast.data.codec import Unknown
from holdfast.data.reducers import add, append, keep_last, merge, union
from holdfast.data.state import State
from holdfast.data.types import register_type
from holdfast.define.builder import StateGraph
from holdfast.engine.app import App
from holdfast.engine.blocking import RunInterrupted, RunTerminated
from holdfast.engine.context import Context
from holdfast.engine.housekeeping import periodic_cleanup
from holdfast.engine.outcome import Figures, Outcome, Pause
from holdfast.engine.policy import CheckpointPolicy, Retention
from holdfast.errors import (
    AnswerRejected,
    CheckpointNotFound,
    CodecError,
    CorruptJournal,
    ExecutionError,
    GraphChanged,
    GraphInvalid,
    HoldfastError,
    MaxIterationsExceeded,
    NotPaused,
    RunConflict,
    RunExists,
    RunFinished,
    RunNotFound,
    StateInvalid,
    StepTimeout,
    StoreError,
)
from holdfast.events import (
    CallbackObserver,
    Event,
    LoggingObserver,
    MultiObserver,
    NoOpObserver,
    Observer,
    get_observer,
    register_observer,
)
from holdfast.journal.checkpoints import Checkpoint
from holdfast.plan.graph import Command, Send
from holdfast.plan.retry import Retry
from holdfast.stores import get_store, open_store, register_store
from holdfast.values import END, START, RunStatus
