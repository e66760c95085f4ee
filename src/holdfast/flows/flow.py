"""`Flow`: a workflow file that was read, and all that can be done with it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine.app import App
from holdfast.engine.policy import CheckpointPolicy, Retention
from holdfast.errors import GraphInvalid, HoldfastError
from holdfast.events import Event, Observer
from holdfast.flows.compile import StepInvalid, compile_flow, last_output
from holdfast.flows.inputs import read_inputs
from holdfast.flows.model import Definition, Step
from holdfast.flows.parse import parse
from holdfast.flows.problems import FlowInvalid
from holdfast.flows.scope import Layout, members
from holdfast.flows.secrets import Scrubber, Secrets
from holdfast.flows.source import Source, read_source
from holdfast.flows.world import Purse, World
from holdfast.stores.base import Store

_FILES = {"sqlite": ("sqlite:///", "runs.db"), "files": ("file:///", "runs")}


def load_flow(path: str | Path, *, env: Mapping[str, str] | None = None, text: str | None = None) -> Flow:
    """Read a workflow file, or `text` as if it were one; `FlowInvalid` lists every problem at once."""
    environment = os.environ if env is None else env
    return _flow(read_source(Path(path), env=environment, text=text), environment)


def flow_of_run(
    config: Mapping[str, Any], *, file: str | Path | None = None, env: Mapping[str, str] | None = None
) -> Flow:
    """The workflow that a stored run was started with, as its file is now.

    `file` says where that file is if it was moved; if it is gone, what was saved of it is taken.
    """
    environment, saved = os.environ if env is None else env, config.get("flow")
    if file is not None:
        return load_flow(file, env=environment)
    if not isinstance(saved, Mapping):
        raise HoldfastError(
            "this run was not started from a workflow file; resume it from its Python program, or give the file with "
            "--workflow FILE"
        )
    path = Path(str(saved["path"]))
    if path.is_file():
        return load_flow(path, env=environment)
    source = read_source(
        path, env=environment, text=str(saved["source"]), included=dict(saved.get("included") or {})
    )
    return _flow(source, environment)


def _flow(source: Source, env: Mapping[str, str]) -> Flow:
    return Flow(source, parse(source), env)


class Flow:
    """A workflow file: what it is given, its graph on a store, what it results in."""

    def __init__(self, source: Source, definition: Definition, env: Mapping[str, str]) -> None:
        self._source, self._env, self.definition = source, env, definition
        self.path = source.path
        self.name, self.description = definition.workflow.name, definition.workflow.description
        self.digest = source.digest
        secrets = Secrets(env)
        self._scrubber = Scrubber(secrets)
        purse = Purse.of(definition.workflow.limits)
        self._world = World(self.path.resolve().parent, env, secrets, self._scrubber, purse)

    def read_inputs(self, given: Mapping[str, Any], text: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The inputs of a run: `given` values, and `text` that is read as the declared types say."""
        return read_inputs(self.definition.workflow, given, text)

    def begin(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """What `App.invoke` takes for these inputs."""
        return {"inputs": dict(inputs)}

    def config(self) -> dict[str, Any]:
        """What a run remembers of its workflow file, so that it can be resumed by its id alone."""
        return {
            "flow": {
                "path": str(self.path.resolve()),
                "digest": self.digest,
                "source": self._source.text,
                "included": dict(self._source.included),
            }
        }

    def scrub(self, value: Any) -> Any:
        """A value without the secrets that were used so far."""
        return self._scrubber.scrub(value)

    def output(self, state: State) -> Any:
        """What a run resulted in: its `output`, or else the output of the step that ran last."""
        if self.definition.output is not None:
            return state.get("output")
        return last_output(Layout(self.definition), state)

    def store_url(self) -> str:
        """Where the file says that runs are kept; relative to the current folder."""
        checkpoint = self.definition.workflow.checkpoint
        if checkpoint.storage == "memory":
            return "memory://"
        scheme, name = _FILES[checkpoint.storage]
        folder = checkpoint.path.replace("${workflow.name}", self.name)
        return f"{scheme}{Path(folder).expanduser().absolute() / name}"

    def open(
        self,
        store: Store | str | None = None,
        *,
        observer: Observer | Callable[[Event], object] | None = None,
        interrupt_before: Iterable[str] = (),
        interrupt_after: Iterable[str] = (),
        skip_gates: bool = False,
        interactive: bool = False,
        durability: str | None = None,
    ) -> App:
        """The workflow's graph on a store, by default the one that the file names.

        `interactive` says that somebody can be asked about interrupted steps that may not simply be repeated.
        """
        workflow = self.definition.workflow
        world = dataclasses.replace(self._world, skip_gates=skip_gates, interactive=interactive)
        try:
            graph = compile_flow(self.definition, world, self._load)
            return graph.compile(
                self.store_url() if store is None else store,
                interrupt_before=self._gates("before", [*workflow.interrupt_before, *interrupt_before]),
                interrupt_after=self._gates("after", [*workflow.interrupt_after, *interrupt_after]),
                policy=self._policy(durability),
                retention=self._retention(),
                max_parallel=workflow.limits.max_parallel,
                on_change=workflow.on_change,
                observer=observer,
            )
        except StepInvalid as error:
            raise FlowInvalid([self._problem(error.step, error.reason)]) from error
        except GraphInvalid as error:
            raise FlowInvalid(
                [self._source.problem(("steps",), problem) for problem in error.problems]
            ) from error

    def _load(self, path: Path) -> tuple[Path, Definition]:
        return path.parent, parse(read_source(path, env=self._env))

    def _problem(self, step: str, reason: str) -> Any:
        for index, found in enumerate(self.definition.steps):
            if step == found.name or step in [member.name for member in members(found)]:
                return self._source.problem(("steps", index), f"step {step!r}: {reason}")
        return self._source.problem(("steps",), f"step {step!r}: {reason}")

    def _gates(self, where: str, names: Iterable[str]) -> list[str]:
        """The nodes to pause at: those of the steps named, and of the steps that say so themselves."""
        steps = Layout(self.definition).steps
        own = [step.name for step in steps.values() if step.interrupt == where]
        found = []
        for name in dict.fromkeys([*own, *names]):
            step = steps.get(name)
            found.append(
                f"{name}:done" if step is not None and where == "after" and _is_composite(step) else name
            )
        return found

    def _policy(self, durability: str | None) -> CheckpointPolicy:
        checkpoint = self.definition.workflow.checkpoint
        return CheckpointPolicy(
            interval=checkpoint.interval,
            # Steps that fail under `continue` have a stand-in of their own, which keeps the failure as data.
            on_failure="pause" if checkpoint.on_failure == "continue" else checkpoint.on_failure,
            on_save_error=checkpoint.on_save_error,
            preserve=checkpoint.preserve,
            durability=durability or (checkpoint.durability if checkpoint.enabled else "exit"),
        )

    def _retention(self) -> Retention | None:
        wish = self.definition.workflow.checkpoint.retention
        if wish is None:
            return None
        return Retention(
            max_age=None if wish.max_age_days is None else dt.timedelta(days=wish.max_age_days),
            max_checkpoints=wish.max_checkpoints,
            keep_successful=wish.keep_successful,
            pause_ttl=None if wish.pause_ttl is None else dt.timedelta(seconds=wish.pause_ttl),
        )


def _is_composite(step: Step) -> bool:
    return step.for_each is not None or step.parallel is not None or step.workflow is not None
