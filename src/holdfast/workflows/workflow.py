"""`Workflow`: a workflow file that was read, and all that can be done with it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from holdfast.engine.app import App
from holdfast.engine.checkpoint_files import check_config, check_options, has_workflow_file
from holdfast.engine.checkpoint_files import read as read_checkpoint_file
from holdfast.engine.confirmation import admitted_file, as_of, confirm
from holdfast.engine.resume import find_run, is_checkpoint_file
from holdfast.engine.runner import known_apps
from holdfast.engine.settings import CheckpointPolicy, Outcome, Retention
from holdfast.errors import (
    CannotRerun,
    CheckpointNotFound,
    GraphInvalid,
    HoldfastError,
    Remedy,
    RunNotFound,
    StoreError,
    UnknownWorkflow,
    did_you_mean,
)
from holdfast.events import Event, Observer, ObserverLike
from holdfast.graph.graph import Graph, base_name, outline_names, renamed_nodes
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.journal.journal import Journal
from holdfast.journal.run_state import frame_of, node_of
from holdfast.journal.sealing import Seal
from holdfast.names import LazyModule
from holdfast.state.codec import TolerantCodec
from holdfast.state.state import State
from holdfast.stores import open_store, url_of_environment
from holdfast.stores.base import RunInfo, Store, is_in_memory, namespace_of, shown_url
from holdfast.workflows.compile import (
    StepInvalid,
    StepsInvalid,
    compile_workflow,
    follow_by_order,
    last_output,
)
from holdfast.workflows.folders import Scratch
from holdfast.workflows.kinds.shell import Command
from holdfast.workflows.model import Definition
from holdfast.workflows.reading.problems import Position, Problem, WorkflowInvalid, listed
from holdfast.workflows.reading.source import Source, read_source
from holdfast.workflows.reading.validation import parse
from holdfast.workflows.scope import Budget, Layout, Resources, read_inputs
from holdfast.workflows.secrets import Scrubber, Secrets
from holdfast.workflows.settings import Hooks
from holdfast.workflows.step import Work

if TYPE_CHECKING:
    from holdfast.engine.resume import ResumeKeywords
    from holdfast.stores import inspection
else:
    inspection = LazyModule("stores.inspection")

# The files that a workflow is made of: as they are on disk, or as a run has saved them.


MAX_BYTES = 1_000_000
"""How much the sub-workflows of one workflow may have in all, since every run keeps a copy of them."""

PREFER = ("file", "saved")


class WorkflowFiles:
    """Reads a workflow's own file, and those of its sub-workflows, each once.

    `saved` is what `as_saved` gave for an earlier reading. It is taken for files that are gone, or, with
    `prefer="saved"`, for all files: nothing is read, or looked for, on this machine's disk.
    """

    def __init__(
        self,
        root: Path,
        env: Mapping[str, str],
        saved: Mapping[str, Any] | None = None,
        prefer: str = "file",
    ) -> None:
        if prefer not in PREFER:
            raise HoldfastError(f"prefer must be 'file' or 'saved', not {prefer!r}")
        self._root, self._env, self._prefer = root, env, prefer
        self._saved: Mapping[str, Any] = saved or {}
        self._folder = root.resolve().parent
        self._read: dict[str, Source] = {}

    @property
    def are_saved(self) -> bool:
        """Whether all files are those that a run has saved."""
        return self._prefer == "saved"

    def root(self, text: str | None = None) -> Source:
        """Return the workflow's own file, or `text` in its place."""
        if text is None and "source" in self._saved and self._takes_saved(self._root):
            return self._kept(self._root, self._saved)
        if text is None and self._prefer == "saved":
            raise HoldfastError("the workflow that this run was started with is not stored with it")
        return read_source(self._root, env=self._env, text=text, has_file=self.has)

    def definition(self, path: Path) -> Definition:
        """Return the workflow in another file."""
        return parse(self._source(path))

    def has(self, path: Path) -> bool:
        """Return True if there is such a file, on disk or saved."""
        return self._name(path) in self._others or (self._prefer == "file" and path.is_file())

    def as_saved(self, definition: Definition) -> dict[str, Any]:
        """Return the texts of the sub-workflows of a workflow, on all levels, by their paths from its own folder."""
        found: dict[str, Any] = {}
        todo = [(self._folder, definition)]
        while todo:
            folder, outer = todo.pop()
            files = [each.workflow.file for each in Layout(outer).steps.values() if each.workflow is not None]
            for path in ((folder / file).resolve() for file in files):
                name = self._name(path)
                if name not in found:
                    source = self._source(path)
                    found[name] = {"source": source.text, "included": dict(source.included)}
                    todo.append((path.parent, parse(source)))
        return found

    @property
    def _others(self) -> Mapping[str, Any]:
        files = self._saved.get("files")
        return files if isinstance(files, Mapping) else {}

    def _source(self, path: Path) -> Source:
        name = self._name(path)
        if name not in self._read:
            saved = self._others.get(name)
            if isinstance(saved, Mapping) and self._takes_saved(path):
                self._read[name] = self._kept(path, saved)
            elif self._prefer == "saved":
                message = f"the sub-workflow {name!r} is not stored with the run"
                raise WorkflowInvalid([Problem(message, Position(str(path), 1, 1), "", "start a new run")])
            else:
                self._read[name] = read_source(path, env=self._env, has_file=self.has)
            self._check_size(path)
        return self._read[name]

    def _takes_saved(self, path: Path) -> bool:
        return self._prefer == "saved" or not path.is_file()

    def _kept(self, path: Path, saved: Mapping[str, Any]) -> Source:
        return read_source(
            path,
            env=self._env,
            text=str(saved["source"]),
            included=dict(saved.get("included") or {}),
            only_included=self._prefer == "saved",
            has_file=self.has,
        )

    def _name(self, path: Path) -> str:
        return PurePath(os.path.relpath(path.resolve(), self._folder)).as_posix()

    def _check_size(self, path: Path) -> None:
        texts = (text for source in self._read.values() for text in (source.text, *source.included.values()))
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        if size > MAX_BYTES:
            message = (
                f"with this file the sub-workflows have {size:,} bytes; every run keeps a copy of them, "
                f"which may have {MAX_BYTES:,}"
            )
            hint = "read large texts and data in a step, from files of their own"
            raise WorkflowInvalid([Problem(message, Position(str(path), 1, 1), "", hint)])


# `hooks`: commands that run when a run starts, completes or fails. Their failures are only logged.


logger = logging.getLogger("holdfast")

TIMEOUT = 60.0


class Announcer:
    """Runs the hooks of one workflow, with the facts as variables: HOLDFAST_RUN_ID, HOLDFAST_STATUS and so on."""

    def __init__(self, hooks: Hooks, resources: Resources, workflow: str) -> None:
        self._hooks, self._resources, self._workflow = hooks, resources, workflow

    def started(self, run_id: str) -> None:
        """Run the hook of a run that starts or resumes."""
        self._tell("on_start", run_id, "running")

    def ended(self, run_id: str, status: str, error: str = "") -> None:
        """Run the hook of a run that completed or failed; there is none for other endings."""
        name = {"completed": "on_complete", "failed": "on_error"}.get(status)
        if name is not None:
            self._tell(name, run_id, status, HOLDFAST_ERROR=self._resources.scrubber.scrub(error))

    def _tell(self, name: str, run_id: str, status: str, **more: str) -> None:
        script, resources = getattr(self._hooks, name), self._resources
        if script is None:
            return
        facts = {"HOLDFAST_RUN_ID": run_id, "HOLDFAST_WORKFLOW": self._workflow, "HOLDFAST_STATUS": status}
        env, scrub = {**resources.command_env(), **facts, **more}, resources.scrubber.scrub
        command = Command(script, cwd=resources.base, env=env, timeout=TIMEOUT, scrub=scrub)
        try:
            done = command.run(lambda: False, lambda line: None)
        except HoldfastError as error:
            logger.error("hook %s: %s", name, scrub(str(error)))
            return
        if done.code:
            logger.error("hook %s ended with code %d: %s", name, done.code, done.stderr.strip()[-500:])


_PROCESS = uuid.uuid4().hex
"""What distinguishes stores in memory of different processes."""

_OPTIONS = "run"
"""The key of a run's config that holds the options of `Workflow.open`."""

_FILES = {"sqlite": ("sqlite:///", "runs.db"), "files": ("file:///", "runs")}


def load_workflow(
    path: str | Path, *, env: Mapping[str, str] | None = None, text: str | None = None
) -> Workflow:
    """Read a workflow file, or `text` as if it were one; `WorkflowInvalid` lists every problem at once."""
    environment = os.environ if env is None else env
    files = WorkflowFiles(Path(path), environment)
    return Workflow(files.root(text), environment, files)


def workflow_of_run(
    config: Mapping[str, Any],
    *,
    file: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    prefer: str = "file",
) -> Workflow:
    """Return the workflow that a stored run was started with, as its files are now.

    `file` says where its file is if it was moved. Of files that are gone, sub-workflows included, what the run
    saved is taken; with `prefer="saved"`, for a run from outside say, nothing else is, whatever files are there.
    """
    environment, saved = os.environ if env is None else env, config.get("workflow_file")
    if file is not None:
        return load_workflow(file, env=environment)
    check_config(config)
    if not isinstance(saved, Mapping):
        raise HoldfastError(
            "this run was not started from a workflow file; resume it from its Python program, or give the file with "
            "--workflow FILE"
        )
    files = WorkflowFiles(Path(str(saved["path"])), environment, saved, prefer)
    return Workflow(files.root(), environment, files)


def stored_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Workflow.open` that a run's config holds; those of the wrong type are ignored."""
    found = config.get(_OPTIONS)
    if not isinstance(found, Mapping):
        return {}
    durability, timeout, metadata = (found.get(name) for name in ("durability", "timeout", "metadata"))
    return {
        "interrupt_before": _names(found.get("interrupt_before")),
        "interrupt_after": _names(found.get("interrupt_after")),
        "skip_gates": found.get("skip_gates") is True,
        "durability": durability if isinstance(durability, str) else None,
        "metadata": dict(metadata) if isinstance(metadata, Mapping) else {},
        "timeout": float(timeout) if isinstance(timeout, (int, float)) and timeout > 0 else None,
    }


def question_ttl(config: Mapping[str, Any], info: RunInfo) -> float | None:
    """Return how many seconds the questions of a run take answers by the retention of its workflow file.

    `None` if they always do, or if the workflow cannot be read here.
    """
    if not has_workflow_file(config):
        return None
    try:
        retention = workflow_of_run(config, prefer="saved" if info.origin else "file").retention()
    except HoldfastError:
        return None
    ttl = None if retention is None else retention.pause_ttl
    return None if ttl is None else ttl.total_seconds()


def _names(found: Any) -> tuple[str, ...]:
    if not isinstance(found, Iterable) or isinstance(found, (str, bytes)):
        return ()
    return tuple(str(name) for name in found)


# Resuming by an id alone.


def resume(
    target: str | Path,
    answer: Any = None,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    answers: Mapping[str, Any] | None = None,
    observer: ObserverLike = None,
    **options: Unpack[ResumeKeywords],
) -> Outcome:
    """Resume a run by its id, a checkpoint's id or a workflow's name alone; see `App.resume` for the options.

    A run of a workflow file carries its definition. A run of a Python graph is continued with the app of that name:
    the one given to `register`, or one that is in use in this process. Without `store`, the run is looked for in the
    default store (see `open_store`), then in those of the apps. A checkpoint file with a workflow in it works, too.
    """
    app = app_of_run(target, store=store, trust=options.get("trust", False))
    return app.resume(target, answer, answers=answers, observer=observer, **options)


def app_of_run(
    target: str | Path,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    trust: bool | str = False,
) -> App:
    """Return the app that continues a stored run; see `resume`. A run from outside needs `trust`."""
    if is_checkpoint_file(target):
        return _app_of_file(Path(target), store, trust)
    found, info, seq = _stored_run(str(target), store)
    registered = known_apps.registered(info.workflow)
    if isinstance(registered, App):
        return registered.on_store(found)
    in_use = [app for app in known_apps.in_use(info.workflow, found) if isinstance(app, App)]
    seal = in_use[-1]._settings.journal.seal if in_use else Seal.from_environment(os.environ)
    journal, codec = Journal(found, seal), TolerantCodec()
    info, run = as_of(journal, info, seq, codec)
    config = codec.decode(run.config) if run.config else {}
    if has_workflow_file(config):
        confirm(journal, info, run, trust)
        check_options(config)
        workflow = workflow_of_run(config, prefer="saved" if info.origin else "file")
        return workflow.open(found, **stored_options(config))
    outlines = [app.outline() for app in in_use]
    if in_use and all(outline == outlines[-1] for outline in outlines):
        return in_use[-1].on_store(found)
    why = "has several different graphs of that name" if in_use else "has no graph of that name"
    raise UnknownWorkflow(
        f"run {info.run!r} is of the Python workflow {info.workflow!r}, and this process {why}",
        remedies=Remedy(text="compile the graph or import its program, then holdfast.register(app)"),
    )


def _stored_run(
    target: str, store: Store | str | os.PathLike[str] | None
) -> tuple[Store, RunInfo, int | None]:
    """Return a run that is meant, with its store and the entry of the checkpoint that is meant."""
    problem: HoldfastError | None = None
    url = url_of_environment(os.environ) if store is None else store
    chosen = None
    if not isinstance(url, (str, os.PathLike)) or inspection.exists(os.fspath(url)):
        chosen = open_store(url)
    else:  # Looking for a run creates nothing.
        kind = CheckpointNotFound if is_checkpoint_id(target) else RunNotFound
        problem = kind(
            f"{target!r} is not found: there is no store at {shown_url(os.fspath(url))}",
            remedies=() if store is None else Remedy(text="check its path: nothing was created there"),
        )
    for place in filter(None, (chosen, *(known_apps.stores() if store is None else ()))):
        try:
            return place, *find_run(place, target)
        except (RunNotFound, CheckpointNotFound) as error:
            problem = problem or error
        except StoreError as error:
            if place is chosen or not error.is_closed:
                raise
    assert problem is not None
    if store is None:
        problem.remedies = (*problem.remedies, Remedy(text="say with store=… where it is stored"))
    raise problem


def _app_of_file(path: Path, store: Store | str | os.PathLike[str] | None, trust: bool | str) -> App:
    found = read_checkpoint_file(path)
    config = found.content["config"]
    if not has_workflow_file(config):
        raise UnknownWorkflow(
            f"{path} does not say which workflow it is of",
            remedies=Remedy(text=f"resume it with its app: app.resume_from_checkpoint({str(path)!r})"),
        )
    admitted_file(found.disclosure(), trust, str(path))
    workflow = workflow_of_run(config, prefer="saved")
    return workflow.open(None if store is None else open_store(store), **stored_options(config))


class OpenKeywords(TypedDict, total=False):
    """The options of `Workflow.open` that a run remembers, so that they hold for every resume."""

    interrupt_before: Iterable[str]
    interrupt_after: Iterable[str]
    skip_gates: bool
    durability: str | None
    timeout: float | None
    metadata: Mapping[str, Any] | None


class Workflow:
    """A workflow file: what it is given, its graph on a store, what it results in."""

    def __init__(self, source: Source, env: Mapping[str, str], files: WorkflowFiles) -> None:
        self._source, self._files, self.definition = source, files, parse(source)
        self.path, self.digest, workflow = source.path, source.digest, self.definition.workflow
        self.name, self.description = workflow.name, workflow.description
        secrets = Secrets(env)
        self._scrubber = Scrubber(secrets)
        budget = Budget.of(workflow.limits)
        self._resources = Resources(self.path.resolve().parent, env, secrets, self._scrubber, budget)

    def read_inputs(self, given: Mapping[str, Any], text: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the inputs of a run: `given` values, and `text` that is read as the declared types say."""
        return read_inputs(self.definition.workflow, given, text)

    def begin(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what `App.invoke` takes for these inputs."""
        return {"inputs": dict(inputs)}

    def config(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a run remembers of its workflow file and its sub-workflows: it can be resumed by its id alone.

        `options` are those of `open` that hold for a resume, too: interrupts, `skip_gates` and `durability`.
        """
        chosen = {} if options is None else {_OPTIONS: dict(options)}
        return chosen | {
            "workflow_file": {
                "path": str(self.path.resolve()),
                "digest": self.digest,
                "source": self._source.text,
                "included": dict(self._source.included),
                "files": self._files.as_saved(self.definition),
            },
            "tags": list(self.definition.workflow.tags),
        }

    def scrub(self, value: Any) -> Any:
        """Return a value without the secrets that were used so far."""
        return self._scrubber.scrub(value)

    def renamed_nodes(self, app: App, run_id: str, names: Mapping[str, str]) -> dict[str, str]:
        """What `App.resume` takes as `remap` for renamed steps of a run; its `rename_keys` are the names themselves.

        What names no step is left for the engine to refuse.
        """
        journal, codec = app._settings.journal, app._settings.codec
        outline = journal.load(journal.info(run_id), codec).run.outline
        unknown = {
            old: new for old, new in names.items() if old not in map(base_name, outline_names(outline))
        }
        return unknown | renamed_nodes(names, outline)

    def announcer(self) -> Announcer:
        """Tells the file's hooks how a run goes."""
        return Announcer(self.definition.workflow.hooks, self._resources, self.name)

    def output(self, state: State) -> Any:
        """Return what a run resulted in: its `output`, or else the output of the step that ran last."""
        if self.definition.output is not None or not follow_by_order(self.definition.steps):
            return state.get("output")
        return last_output(Layout(self.definition), state)

    def store_url(self, folder: Path | None = None) -> str:
        """Return where the file says that runs are kept; a path is relative to `folder`, by default the current one."""
        checkpoint = self.definition.workflow.checkpoint
        if checkpoint.storage == "memory":
            return "memory://"
        if checkpoint.storage == "postgres":
            return checkpoint.url or "postgresql:///"
        scheme, name = _FILES[checkpoint.storage]
        path = Path(checkpoint.path.replace("${workflow.name}", self.name)).expanduser()
        return f"{scheme}{(folder or Path()).absolute() / path / name}"

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
        timeout: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> App:
        """Return the workflow's graph on a store, by default the one that the file names.

        `timeout` is how many seconds one execution may take, instead of the file's `limits.timeout`; `metadata` is what
        templates see beside the file's own, or instead of it.
        `interactive` says that somebody can be asked about interrupted steps that may not simply be repeated.
        """
        workflow, budget = self.definition.workflow, Budget.of(self.definition.workflow.limits)
        budget.asks = budget.asks and not skip_gates
        scratch = Scratch()
        resources = dataclasses.replace(
            self._resources, skip_gates=skip_gates, interactive=interactive, budget=budget, scratch=scratch
        )
        try:
            definition = self.definition
            if metadata:
                own = workflow.model_copy(update={"metadata": {**workflow.metadata, **metadata}})
                definition = definition.model_copy(update={"workflow": own})
            compiled = compile_workflow(definition, resources, self._files.definition, self.path)
            opened = open_store(self.store_url() if store is None else store)
            scratch.store = f"{opened.url} {namespace_of(opened)} {_PROCESS if is_in_memory(opened) else ''}"
            app = compiled.graph.compile(
                opened,
                interrupt_before=self._nodes(compiled.first, [*compiled.before, *interrupt_before], "before"),
                interrupt_after=self._nodes(compiled.last, [*compiled.after, *interrupt_after], "after"),
                checkpoint_dir=Layout(definition, base=resources.base).files,
                policy=self._policy(durability),
                retention=self.retention(),
                max_parallel=workflow.limits.max_parallel,
                on_change=workflow.on_change,
                time_limit=workflow.limits.timeout if timeout is None else timeout,
                on_limit="fail" if skip_gates else workflow.limits.on_limit,
                observer=[each for each in (observer, scratch) if each] if scratch.is_used else observer,
            )
        except StepsInvalid as error:
            raise WorkflowInvalid(map(self._problem, error.problems)) from error
        except GraphInvalid as error:
            problems = (self._source.problem(("steps",), problem) for problem in error.problems)
            raise WorkflowInvalid(problems) from error
        return app

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        store: Store | str | None = None,
        run_id: str | None = None,
        if_exists: str = "fail",
        observer: ObserverLike = None,
        **options: Unpack[OpenKeywords],
    ) -> Outcome:
        """Run the workflow with these inputs; its result is `workflow.output(outcome.state)`.

        The run can be resumed by its id alone, with `holdfast.resume` and on the command line. `store` and `options`
        are as for `open`; the options hold for every resume. For `run_id` and `if_exists` see `App.invoke`.
        """
        with self._opened(store, options) as app:
            begun, config = self._begun(app, inputs, run_id), self.config(options)
            return app.invoke(begun, run_id=run_id, if_exists=if_exists, config=config, observer=observer)

    def submit(
        self,
        inputs: Mapping[str, Any] | None = None,
        *,
        store: Store | str | None = None,
        run_id: str | None = None,
        if_exists: str = "fail",
        key: str | None = None,
        queue: str = "default",
        priority: int = 0,
        **options: Unpack[OpenKeywords],
    ) -> str:
        """Store a run of these inputs for workers, and return its id; see `run` and `App.submit`."""
        with self._opened(store, options) as app:
            begun, config = self._begun(app, inputs, run_id), self.config(options)
            where: dict[str, Any] = {"key": key, "queue": queue, "priority": priority}
            return app.submit(begun, run_id=run_id, if_exists=if_exists, config=config, **where)

    @contextlib.contextmanager
    def _opened(self, store: Store | str | None, options: OpenKeywords) -> Iterator[App]:
        """Yield the workflow on a store, which is closed at the end if it was opened here."""
        app = self.open(store, **options)
        try:
            yield app
        finally:
            if store is None or isinstance(store, str):
                app.store.close()

    def _begun(self, app: App, inputs: Mapping[str, Any] | None, run_id: str | None) -> dict[str, Any] | None:
        """Return what a run begins with; `None` if the inputs of one that exists are to be kept."""
        if inputs is None and run_id is not None and app.store.runs(run=run_id):
            return None
        return self.begin(self.read_inputs(inputs or {}))

    def _problem(self, error: StepInvalid) -> Problem:
        """Return what keeps a step from being made ready, at its place in the file."""
        name = error.step.partition("/")[0]
        message = f"step {error.step!r}: {error.reason}"
        for index, step in enumerate(self.definition.steps):
            if step.name == name:
                return self._source.problem(("steps", index, step.kind), message)
            members = self._source.long_form(("steps", index, step.kind), "steps")
            for place, member in enumerate(step.members):
                if member.name == name:
                    return self._source.problem((*members, place, member.kind), message)
        return self._source.problem(("steps",), message)

    def _nodes(self, known: Mapping[str, str], names: Iterable[str], when: str) -> list[str]:
        """Return the nodes to pause at for these steps; steps of sub-workflows are named `outer/inner`."""
        wanted = list(dict.fromkeys(names))
        problems = [
            self._source.problem(
                ("steps",),
                f"a pause is wanted {when} {name!r}, but there is no such step",
                did_you_mean(name, known) or f"the steps are {listed(known)}",
            )
            for name in wanted
            if name not in known
        ]
        if problems:
            raise WorkflowInvalid(problems)
        return [known[name] for name in wanted]

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

    def retention(self) -> Retention | None:
        """Return how long the file says that runs, checkpoints and questions are kept.

        A definition that is taken from a run deletes only what it says; without a word it keeps everything.
        """
        checkpoint = self.definition.workflow.checkpoint
        retention = checkpoint.retention
        if retention is None or (self._files.are_saved and "retention" not in checkpoint.model_fields_set):
            return None
        return Retention(
            max_age=None if retention.max_age_days is None else dt.timedelta(days=retention.max_age_days),
            max_checkpoints=retention.max_checkpoints,
            per=retention.per,
            keep_successful=retention.keep_successful,
            pause_ttl=None if retention.pause_ttl is None else dt.timedelta(seconds=retention.pause_ttl),
        )


# What somebody says that a step of a workflow file came to, as what its node would have returned.


def returned(graph: Graph, step: str, output: Any) -> Callable[[Any], Mapping[str, Any]]:
    """Return what the node of a step, which is named by its id, returns for a state if this is the step's output."""
    node = graph.at(frame_of(step)).nodes[node_of(step).rpartition("/")[2]]
    work = getattr(node.function, "__self__", node.function)
    if not isinstance(work, Work):
        raise CannotRerun(f"step {step!r} is made of others; give the output of one of those")
    return lambda state: work.update(state, {"status": "completed", "output": output})
