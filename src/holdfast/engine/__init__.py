"""The engine. What few runs need is loaded when it is first used, by its name here: `engine.apply_command`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.answers import answer_schema as answer_schema
    from holdfast.engine.app import App as App
    from holdfast.engine.checkpoint_files import check_config as check_config
    from holdfast.engine.commands.control import process_inbox as process_inbox
    from holdfast.engine.commands.handlers import apply_command as apply_command
    from holdfast.engine.continuation import go_on_from as go_on_from
    from holdfast.engine.executors.executors import done_elsewhere as done_elsewhere
    from holdfast.engine.executors.executors import elsewhere as elsewhere
    from holdfast.engine.executors.remote import Facts as Facts
    from holdfast.engine.executors.remote import SentState as SentState
    from holdfast.engine.executors.remote import Task as Task
    from holdfast.engine.retention import janitor as janitor
    from holdfast.engine.speculation import Guesses as Guesses
    from holdfast.engine.speculation import Speculation as Speculation
    from holdfast.engine.time_travel.reuse import ReusableSteps as ReusableSteps
    from holdfast.engine.time_travel.reuse import ReuseSource as ReuseSource
    from holdfast.graph.branches import result_of as result_of
    from holdfast.journal.copying import delete_run as delete_run
    from holdfast.journal.copying import needed_by as needed_by
    from holdfast.views.plain import preview_ops as preview_ops
    from holdfast.views.plain import preview_state as preview_state
    from holdfast.views.plain import state_size as state_size
else:
    from importlib import import_module

    _HOMES = {
        "engine.answers": "answer_schema",
        "engine.app": "App",
        "engine.checkpoint_files": "check_config",
        "engine.commands.control": "process_inbox",
        "engine.commands.handlers": "apply_command",
        "engine.continuation": "go_on_from",
        "engine.executors.executors": "done_elsewhere elsewhere",
        "engine.executors.remote": "Facts SentState Task",
        "engine.retention": "janitor",
        "engine.speculation": "Guesses Speculation",
        "engine.time_travel.reuse": "ReusableSteps ReuseSource",
        "graph.branches": "result_of",
        "journal.copying": "delete_run needed_by",
        "views.plain": "preview_ops preview_state state_size",
    }
    _HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.{_HOME[name]}"), name)
