"""Checkpoints in stores of Holdfast's own, their manager, and configs."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import os
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from holdfast.checkpoints.custom import (
    AdaptedStore,
    CheckpointStore,
    call,
    check_limits,
    is_custom,
    listed,
    loaded,
)
from holdfast.checkpoints.data import (
    CheckpointData,
    layer_count,
    read_checkpoint,
    read_checkpoints,
    save_by_hand,
)
from holdfast.engine.app import App
from holdfast.engine.resume import find_checkpoint
from holdfast.engine.retention import expire_runs, prune_workflow
from holdfast.engine.settings import CheckpointPolicy, Retention
from holdfast.errors import (
    CheckpointNotFound,
    HoldfastError,
    RunExists,
    StateInvalid,
    StoreError,
    suggestion,
)
from holdfast.graph.graph import Graph
from holdfast.journal.checkpoint_ids import is_checkpoint_id
from holdfast.journal.copying import delete_run, prune_run
from holdfast.journal.journal import Journal
from holdfast.journal.sealing import Seal
from holdfast.state.codec import Codec, TolerantCodec
from holdfast.state.schema import as_mapping
from holdfast.state.state import State, origin_of
from holdfast.stores import get_store, open_store, register_store
from holdfast.stores.base import KeepsCheckpoints, RunInfo, Store, is_server
from holdfast.threads import in_background

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

Checkpoints = list[CheckpointData]
RunIds = list[str]


def _in_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """The async twin of a method: it works in a thread, so the event loop is never blocked."""

    async def twin(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await in_background(method, self, *args, **kwargs)

    twin.__doc__ = f"As `{method.__name__}`, without blocking the event loop."
    return twin


class JournalCheckpointStore(CheckpointStore):
    """The checkpoints of a store: those of graphs' runs, and what was saved by hand.

    `store` is a store, whatever `open_store` takes, or an app, whose store, types and key it then
    shares. Every method may be called from any thread, and has an async twin: `asave`, `aload`, ….
    """

    def __init__(
        self,
        store: Store | App | KeepsCheckpoints | str | os.PathLike[str] | None = None,
        *,
        encryption_key: str | None = None,
    ) -> None:
        if isinstance(store, App):
            self._journal = store._settings.journal
            self._codec: Codec = TolerantCodec(store._settings.codec.types)
        else:
            seal = Seal.chosen(encryption_key or None, None, os.environ)
            self._journal = Journal(open_store(store), seal)
            self._codec = TolerantCodec()

    @property
    def store(self) -> Store:
        """The store that this is a view of."""
        return self._journal.store

    _whole_store = store
    """What a graph that is compiled with this is given."""

    # One checkpoint.

    def save(self, data: State | CheckpointData | Mapping[str, Any], *, workflow: str = "state") -> str:
        """Save a state, or a checkpoint with all its facts; return the checkpoint's id.

        A state becomes the newest checkpoint of its run, and gets an id. A `CheckpointData` keeps the id that it
        has, in place of what was saved under it; without one it becomes the newest of its `run_id`. A graph that
        resumes either continues after the nodes of its last wave, or after the state's `checkpoint_node`, or, if no
        node made this state, begins with it. A run of a graph can only be saved by that graph.
        """
        if isinstance(data, CheckpointData):
            found = self._find(data.checkpoint_id) if data.checkpoint_id else None
            if found is not None and found[0].run != data.checkpoint_id and found[0].run == data.run_id:
                raise RunExists(
                    f"checkpoint {data.checkpoint_id} is one of run {data.run_id!r}, which this store has already; "
                    "to save it once more, give it another checkpoint_id"
                )
            run = data.checkpoint_id or data.run_id
            return save_by_hand(self._journal, self._codec, run, data, is_whole=True)
        state = as_state(data)
        made = CheckpointData(workflow_name=workflow, state=state)
        return save_by_hand(self._journal, self._codec, made.run_id, made, is_whole=False)

    def save_state(self, state: State) -> str:
        """As `save`."""
        return self.save(state)

    def load(self, checkpoint_id: str) -> CheckpointData | None:
        """The checkpoint of that id, or the run of that id as it stands now; `None` if there is neither."""
        found = self._find(checkpoint_id)
        return None if found is None else read_checkpoint(self._journal, found[0], self._codec, found[1])

    def exists(self, checkpoint_id: str) -> bool:
        """Return whether there is a checkpoint, or a run, of that id."""
        return self._find(checkpoint_id) is not None

    def load_state(self, ident: str) -> State:
        """The state of a checkpoint, or of a run as it stands now; `CheckpointNotFound` if there is neither."""
        found = self.load(ident)
        if found is None:
            raise CheckpointNotFound(f"checkpoint not found: {ident}", store=self.store.url)
        return found.state

    def delete(self, checkpoint_id: str) -> None:
        """Remove a run, or a checkpoint with those before it; nothing happens if there is neither.

        A journal can lose its past but not its middle. With its newest checkpoint goes the whole run.
        """
        found = self._find(checkpoint_id)
        if found is None:
            return
        info, seq = found
        newer = [each.seq for each in self.store.checkpoints(info.run) if seq is not None and each.seq > seq]
        if not newer:
            delete_run(self._journal, info.run)
        else:
            prune_run(self._journal, info, newer[-1])

    # Many checkpoints.

    @overload  # type: ignore[override]
    def list(self, workflow_name: None = None) -> RunIds: ...
    @overload
    def list(self, workflow_name: str) -> Checkpoints: ...
    def list(self, workflow_name: str | None = None) -> RunIds | Checkpoints:
        """The ids of all runs, last saved first; with a workflow its checkpoints, newest first."""
        if workflow_name is not None:
            return self.list_checkpoints(workflow_name)
        return [info.run for info in self.store.runs()]

    def list_checkpoints(self, workflow_name: str | None = None) -> Checkpoints:
        """Every checkpoint, or those of one workflow, newest first."""
        found = [
            (data.created_at, index, data)
            for info in self.store.runs(workflow=workflow_name)
            for index, data in enumerate(self._checkpoints_of(info))
        ]
        found.sort(key=lambda item: item[:2], reverse=True)
        return [data for _, _, data in found]

    def latest(self, workflow: str) -> CheckpointData | None:
        """The newest checkpoint of a workflow."""
        newest = [(stored[0].at, info, stored[0].seq) for info, stored in self._marked(workflow)]
        if not newest:
            return None
        _, info, seq = max(newest, key=lambda item: item[0])
        return read_checkpoint(self._journal, info, self._codec, seq)

    def prune(self, max_age_days: float | None = None, max_count: int | None = None) -> int:
        """Keep at most `max_count` checkpoints per workflow and drop runs untouched for `max_age_days`.

        The oldest go first. A workflow's last successful run stays, and so does the newest checkpoint of
        a run that can be resumed, unless it is too old. Answers how many checkpoints went.
        """
        check_limits(max_age_days=max_age_days, max_count=max_count)
        age = None if max_age_days is None else dt.timedelta(days=max_age_days)
        retention = Retention(max_age=age, max_checkpoints=max_count)
        workflows = {info.workflow for info in self.store.runs()}
        gone = sum(prune_workflow(self._journal, workflow, retention) for workflow in workflows)
        return gone if age is None else gone + self._expire(age, keep_successful=True)

    def prune_old_checkpoints(self, workflow: str, keep_count: int = 5) -> int:
        """Keep the newest checkpoints of a workflow; answer how many went. See `prune` for what stays."""
        return prune_workflow(self._journal, workflow, Retention.recent(keep_count))

    def cleanup_expired(self, max_age_hours: float = 24) -> int:
        """Drop the runs that nobody touched for so long, successful or not; answer how many checkpoints went."""
        check_limits(max_age_hours=max_age_hours)
        return self._expire(dt.timedelta(hours=max_age_hours), keep_successful=False)

    asave = _in_thread(save)
    asave_state = _in_thread(save_state)
    aload = _in_thread(load)
    aexists = _in_thread(exists)
    aload_state = _in_thread(load_state)
    adelete = _in_thread(delete)
    alist = _in_thread(list)
    alist_checkpoints = _in_thread(list_checkpoints)
    alatest = _in_thread(latest)
    aprune = _in_thread(prune)
    aprune_old_checkpoints = _in_thread(prune_old_checkpoints)
    acleanup_expired = _in_thread(cleanup_expired)

    # How it is done.

    def _find(self, ident: str) -> tuple[RunInfo, int | None] | None:
        if not isinstance(ident, str):
            raise HoldfastError(f"a checkpoint or a run is found by its id, not by {ident!r:.80}")
        if found := self.store.runs(run=ident):
            return found[0], None
        if not is_checkpoint_id(ident):
            return None
        try:
            return find_checkpoint(self.store, ident)
        except CheckpointNotFound:
            return None

    def _checkpoints_of(self, info: RunInfo) -> Iterable[CheckpointData]:
        """Return the checkpoints of a run, oldest first; of those that were saved under one id the newest."""
        found = {data.checkpoint_id: data for data in read_checkpoints(self._journal, info, self._codec)}
        return found.values()

    def _marked(self, workflow: str | None = None) -> Any:
        for info in self.store.runs(workflow=workflow):
            if stored := self.store.checkpoints(info.run):
                yield info, stored

    def _expire(self, max_age: dt.timedelta, *, keep_successful: bool) -> int:
        counts = {info.run: len(stored) for info, stored in self._marked()}
        expire_runs(self.store, max_age, keep_successful=keep_successful)
        return sum(count for run, count in counts.items() if not self.store.runs(run=run))


class _OfCheckpoints(JournalCheckpointStore):
    """A store of checkpoints of which `list` always lists checkpoints."""

    def list(self, workflow_name: str | None = None) -> Checkpoints:  # type: ignore[override]
        """Every checkpoint, or those of one workflow, newest first."""
        return self.list_checkpoints(workflow_name)

    alist = _in_thread(list)  # type: ignore[assignment, arg-type]


class InMemoryCheckpointStore(_OfCheckpoints):
    """Checkpoints in the memory of this process, apart from those of every other store."""

    def __init__(self) -> None:
        super().__init__("memory://")


class SQLiteCheckpointStore(_OfCheckpoints):
    """Checkpoints in one SQLite file, which is created if it is missing."""

    def __init__(self, db_path: str | os.PathLike[str], *, encryption_key: str | None = None) -> None:
        if not isinstance(db_path, (str, os.PathLike)) or not os.fspath(db_path):
            raise StoreError(f"SQLiteCheckpointStore needs the path of a file, not {db_path!r:.80}")
        super().__init__(f"sqlite:///{os.fspath(db_path)}", encryption_key=encryption_key)


class PostgresCheckpointStore(_OfCheckpoints):
    """Checkpoints on PostgreSQL; its tables are created if they are missing."""

    def __init__(self, connection_string: str, *, encryption_key: str | None = None) -> None:
        if not isinstance(connection_string, str) or not is_server(connection_string):
            raise StoreError(
                "PostgresCheckpointStore needs a connection string such as postgresql://USER@HOST/DATABASE"
            )
        super().__init__(connection_string, encryption_key=encryption_key)


def get_checkpoint_store(name: str) -> CheckpointStore:
    """Return the store registered as `name` as a store of checkpoints; `"memory"` is there from the beginning."""
    store = get_store(name)
    return store.custom if isinstance(store, AdaptedStore) else JournalCheckpointStore(store)


def register_checkpoint_store(name: str, store: Store | KeepsCheckpoints) -> None:
    """Make a store, or a store of checkpoints, available by name, in place of any earlier one of that name."""
    register_store(name, store)


def as_state(given: Any) -> State:
    """Return a state, or a mapping, a dataclass or a pydantic model as one; refuse anything else."""
    if isinstance(given, State):
        return given
    found = given if given is None or isinstance(given, type) else _mapping_of(given)
    if not isinstance(found, Mapping) or not all(isinstance(key, str) for key in found):
        kinds = "a State, a CheckpointData, a dataclass, a pydantic model or a mapping of keys to values"
        raise StateInvalid(f"what is saved is {kinds}, not {given!r:.80} ({type(given).__name__})")
    return State(found)


def _mapping_of(given: Any) -> Any:
    """Return a state's keys and values, if it has any."""
    try:
        return as_mapping(given, "a state")
    except StateInvalid:
        return given


class CheckpointManager:
    """Saves the state of a graph after its layers, loads it, and keeps the newest.

    `store` is a store of checkpoints, also one of your own, or whatever `JournalCheckpointStore` takes.
    """

    def __init__(self, store: Store | App | KeepsCheckpoints | str | os.PathLike[str] | None = None) -> None:
        self.checkpoints: Any = store if is_custom(store) else JournalCheckpointStore(store)
        self._runs: dict[str, str] = {}
        """By workflow, the run that states without a run of their own belong to."""

    def save_checkpoint(self, state: Any, dag: Any, layer_index: int) -> str:
        """Save a state after `layer_index` completed layers of a graph; return the checkpoint's id.

        `state` is a `State`, a `WorkflowState`, another mapping, a dataclass or a pydantic model. A mapping that can
        be changed, and an object with an attribute `checkpoint_id` that can be set, get the id there. `dag` is a
        graph, an app, or a graph as plain data, whose `name` is the workflow's. More layers than it has are refused;
        a graph that loops may complete any number.
        """
        outline, may_jump = _outline(dag)
        if not isinstance(layer_index, int) or isinstance(layer_index, bool) or layer_index < 0:
            raise HoldfastError(f"layer_index is how many layers are complete, not {layer_index!r:.80}")
        most = None if may_jump else layer_count(outline)
        if most is not None and layer_index > most:
            has = f"{most} layer" + ("" if most == 1 else "s")
            raise HoldfastError(
                f"layer_index is how many layers are complete, and not {layer_index}: the graph has {has}"
            )
        workflow = str(outline.get("name") or outline.get("workflow_id") or "workflow")
        given = as_state(state)
        plain = {key: value for key, value in given.items() if key != "checkpoint_id"}
        run_id = self._run_of(state, given, workflow)
        data = CheckpointData(
            checkpoint_id="" if isinstance(self.checkpoints, JournalCheckpointStore) else str(uuid.uuid4()),
            workflow_name=workflow,
            run_id=run_id,
            state=state if isinstance(state, State) else State(plain, run_id=run_id),
            outline=outline,
            completed_waves=layer_index,
        )
        ident: str = data.checkpoint_id or self.checkpoints.save(data)
        if data.checkpoint_id:
            call(self.checkpoints, "save", data)
        if isinstance(state, MutableMapping):
            state["checkpoint_id"] = ident
        elif not isinstance(state, Mapping) and hasattr(state, "checkpoint_id"):
            with contextlib.suppress(AttributeError, TypeError, ValueError):  # It may be frozen.
                state.checkpoint_id = ident
        return ident

    def load(self, checkpoint_id: str) -> CheckpointData:
        """Return the checkpoint of that id; `CheckpointNotFound` if there is none."""
        if not isinstance(checkpoint_id, str):
            raise HoldfastError(f"a checkpoint is found by its id, not by {checkpoint_id!r:.80}")
        found = loaded(self.checkpoints, checkpoint_id)
        if found is None:
            raise CheckpointNotFound(f"checkpoint not found: {checkpoint_id}")
        return found

    def prune_old_checkpoints(self, workflow_id: str, keep_count: int = 5) -> int:
        """Keep the newest checkpoints of a workflow; return how many went.

        In a store of Holdfast's own, the newest checkpoint of a run that can be resumed stays, too.
        """
        if not isinstance(workflow_id, str):
            raise HoldfastError(f"workflow_id is the name of a workflow, not {workflow_id!r:.80}")
        if not isinstance(keep_count, int) or isinstance(keep_count, bool) or keep_count < 1:
            raise HoldfastError(f"keep_count must be at least 1, not {keep_count!r:.80}")
        if isinstance(self.checkpoints, JournalCheckpointStore):
            return self.checkpoints.prune_old_checkpoints(workflow_id, keep_count)
        found = [pair for pair in listed(self.checkpoints) if pair[1].workflow_name == workflow_id]
        found.sort(key=lambda pair: pair[1].created_at, reverse=True)
        for ident, _ in found[keep_count:]:
            call(self.checkpoints, "delete", ident)
        return len(found[keep_count:])

    def _run_of(self, given: Any, state: State, workflow: str) -> str:
        """Return the run that a state is saved in: its own, that of its last checkpoint, else this manager's."""
        if isinstance(given, State):
            return origin_of(given).run_id
        before = state.get("checkpoint_id")
        known = loaded(self.checkpoints, before) if isinstance(before, str) and before else None
        return known.run_id if known else self._runs.setdefault(workflow, str(uuid.uuid4()))


def _outline(dag: Any) -> tuple[dict[str, Any], bool]:
    """Return a graph as plain data, and whether a node may lead to others than its edges do."""
    build = getattr(dag, "build", None)
    graph = dag.graph if isinstance(dag, App) else build() if callable(build) else dag
    if isinstance(graph, Graph):
        return graph.outline(), any(node.goto for node in graph.nodes.values())
    if not isinstance(dag, Mapping) or not all(isinstance(key, str) for key in dag):
        raise HoldfastError(
            f"dag is a graph, an app or a graph as plain data, not {dag!r:.80} ({type(dag).__name__})"
        )
    return dict(dag), False


# `GraphConfig` and `CheckpointConfig`: a graph's settings as plain data, for files and registries.


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """The store that a graph saves to, the number of waves between checkpoints, and whether a completed run is kept.

    `store` is a registered name or a store's URL. An `interval` of 0 turns checkpoints off.
    """

    store: str = "memory"
    interval: int = 0
    preserve: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.preserve, bool):
            raise HoldfastError(f"preserve of a CheckpointConfig is true or false, not {self.preserve!r:.80}")
        self.policy()

    def policy(self) -> CheckpointPolicy:
        """These settings as a policy: a failed save stops the run; if checkpoints are off, a failed run is not kept."""
        return CheckpointPolicy(
            interval=self.interval,
            on_failure="pause" if self.interval else "rollback",
            preserve="all" if self.preserve else "none",
        )

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> CheckpointConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        return cls(**_known(cls, source))

    def merge(self, other: CheckpointConfig | Mapping[str, Any]) -> CheckpointConfig:
        """Return these settings with others put over them: what a mapping names, or what is no default in a config."""
        return dataclasses.replace(self, **_chosen(CheckpointConfig, other))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """A graph's name, the registered name of its observer, or several, its iteration limit, and its checkpoints."""

    name: str
    observer: str | Sequence[str] = "slog"
    max_iterations: int = 1000
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        if isinstance(self.checkpoint, Mapping):
            object.__setattr__(self, "checkpoint", CheckpointConfig.from_dict(self.checkpoint))
        kinds: dict[str, type] = {"name": str, "max_iterations": int, "checkpoint": CheckpointConfig}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise HoldfastError(f"{name} of a GraphConfig is of type {kind.__name__}, not {value!r:.80}")
        if self.max_iterations < 1:
            raise HoldfastError(f"max_iterations of a GraphConfig is at least 1, not {self.max_iterations}")

    @classmethod
    def from_dict(cls, source: Mapping[str, Any]) -> GraphConfig:
        """From plain data, such as parsed JSON; unknown keys are refused, missing ones have their defaults."""
        known = _known(cls, source)
        if "name" not in known:
            raise HoldfastError("GraphConfig needs a name")
        return cls(**known)

    def merge(self, other: GraphConfig | Mapping[str, Any]) -> GraphConfig:
        """Return these settings with others put over them, those of the checkpoints one by one; see there."""
        chosen = _chosen(GraphConfig, other)
        if "checkpoint" in chosen:
            chosen["checkpoint"] = self.checkpoint.merge(chosen["checkpoint"])
        return dataclasses.replace(self, **chosen)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `from_dict` reads."""
        return dataclasses.asdict(self)


def default_checkpoint_config() -> CheckpointConfig:
    """Checkpoints off, in memory once they are turned on."""
    return CheckpointConfig()


def default_graph_config(name: str) -> GraphConfig:
    """Return the config of a graph that logs its events and saves nothing."""
    return GraphConfig(name)


def _known(kind: type[Any], source: Mapping[str, Any]) -> dict[str, Any]:
    names = [each.name for each in dataclasses.fields(kind)]
    if not isinstance(source, Mapping):
        raise HoldfastError(f"a {kind.__name__} is read from a mapping, not from {source!r:.80}")
    for key in source:
        if key not in names:
            raise HoldfastError(f"{kind.__name__} has no setting {key!r}{suggestion(str(key), names)}")
    return dict(source)


def _chosen(kind: type[Any], other: Any) -> dict[str, Any]:
    """Return the settings that a mapping names, or those of a config that are not the defaults."""
    if isinstance(other, Mapping):
        return _known(kind, other)
    if not isinstance(other, kind):
        raise HoldfastError(f"merge takes a {kind.__name__} or a mapping, not {other!r:.80}")
    values = {each.name: getattr(other, each.name) for each in dataclasses.fields(kind)}
    default = kind("") if "name" in values else kind()
    return {name: value for name, value in values.items() if value != getattr(default, name)}
