"""`ConfiguredGraph`: a state graph made from a `GraphConfig`, which executes and resumes by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.checkpoints.data import CheckpointData
from holdfast.checkpoints.store import GraphConfig, JournalCheckpointStore
from holdfast.engine.app import App
from holdfast.engine.continuation import tell_loaded
from holdfast.engine.decide import RouteFailed
from holdfast.engine.settings import Outcome
from holdfast.errors import (
    CheckpointNotFound,
    ExecutionError,
    HoldfastError,
    Remedy,
    RunFinished,
    StoreError,
    problem_of,
)
from holdfast.events import ObserverLike, resolve_observer
from holdfast.graph.builder import StateGraph
from holdfast.graph.predicates import always
from holdfast.state.state import State, origin_of
from holdfast.stores import open_store
from holdfast.stores.base import KeepsCheckpoints, Store
from holdfast.values import START, RunStatus

_NEXT = "failed to find next node after checkpoint: "


class ConfiguredGraph(StateGraph):
    """A `StateGraph` whose store, observer and limits come from a config.

    It goes from node to node: of a node's edges, in the order they were added, the first whose predicate
    is true is taken, and an edge without one is always true. Names in the config are resolved here, once; an
    `observer` or a `store` that is given is used instead of the one that the config names.
    """

    def __init__(
        self,
        config: GraphConfig | Mapping[str, Any],
        schema: Any = None,
        *,
        observer: ObserverLike = None,
        store: Store | KeepsCheckpoints | str | None = None,
    ) -> None:
        if isinstance(config, Mapping):
            config = GraphConfig.from_dict(config)
        if not isinstance(config, GraphConfig):
            raise HoldfastError(
                f"a graph is made from a GraphConfig or its to_dict(), not from {config!r:.80}"
            )
        super().__init__(schema, name=config.name, max_iterations=config.max_iterations)
        self.config = config
        try:
            self._observer = resolve_observer(config.observer if observer is None else observer)
        except HoldfastError as error:
            raise HoldfastError(f"failed to resolve observer: {error}") from error
        try:
            named = config.checkpoint.store if self.saves else "memory://"
            self._store = open_store(named if store is None else store)
        except StoreError as error:
            raise StoreError(f"failed to resolve checkpoint store: {problem_of(error)}") from error

    @property
    def saves(self) -> bool:
        """Whether checkpoints are saved at all."""
        return self.config.checkpoint.interval > 0

    def add_edge(
        self,
        source: str | Iterable[str],
        target: str,
        when: Callable[..., Any] | None = None,
        *,
        label: str = "",
    ) -> ConfiguredGraph:
        """Let `target` follow `source` if `when`, a predicate on the state, is true or not given."""
        if when is None and isinstance(source, str) and source != START:
            when = always
        self._app = None
        super().add_edge(source, target, when, label=label)
        return self

    def app(self) -> App:
        """Return the graph, checked and compiled."""
        if self._app is None:
            policy = self.config.checkpoint.policy()
            self._app = self.compile(self._store, policy=policy, observer=self._observer)
        return self._app

    def _last_compiled(self) -> App:
        return self.app()

    def execute(self, state: Mapping[str, Any]) -> State:
        """Run the graph from its entry point to an exit point, as the run `state.run_id`; the state there."""
        run_id = origin_of(state).run_id if isinstance(state, State) else None
        return _finished(self.app().invoke(state, run_id=run_id))

    def resume(self, run_id: str) -> State:
        """Go on with a run at the node after its last checkpoint; the state at an exit point."""
        if not self.saves:
            raise HoldfastError("checkpointing not enabled for this graph")
        app = self.app()
        saved = self._load(app, run_id)
        self._refuse_dead_end(saved)
        try:
            return _finished(app.resume(run_id))
        except ExecutionError as error:
            if isinstance(error.cause, RouteFailed) and self._load(app, run_id).completed == saved.completed:
                found = str(error.cause).replace("from node:", "from checkpoint node:")
                raise ExecutionError(
                    _NEXT + found,
                    node=error.node,
                    state=error.state,
                    path=error.path,
                    run_id=run_id,
                    cause=error,
                ) from error
            raise

    def _load(self, app: App, run_id: str) -> CheckpointData:
        try:
            found = JournalCheckpointStore(app).load(run_id)
        except StoreError as error:
            raise type(error)(f"failed to load checkpoint: {problem_of(error)}") from error
        if found is None:
            raise CheckpointNotFound(f"failed to load checkpoint: checkpoint not found: {run_id}")
        return found

    def _refuse_dead_end(self, saved: CheckpointData) -> None:
        node = origin_of(saved.state).checkpoint_node
        if saved.current:
            return
        ends = saved.status == RunStatus.COMPLETED or node in self._exits
        if not ends and (not node or any(edge.source == node for edge in self._edges)):
            return
        tell_loaded(self._observer, saved.run_id, node)
        if ends:
            raise RunFinished(f"{_NEXT}checkpoint was at exit point, execution already complete")
        raise ExecutionError(
            f"{_NEXT}no outgoing edges from checkpoint node: {node}",
            node=node,
            state=saved.state,
            run_id=saved.run_id,
        )


def _finished(outcome: Outcome[State]) -> State:
    if outcome.status in (RunStatus.CANCELLED, RunStatus.INTERRUPTED):
        raise ExecutionError(
            f"run {outcome.run_id!r}: context cancelled",
            node=origin_of(outcome.state).checkpoint_node,
            state=outcome.state,
            run_id=outcome.run_id,
            remedies=Remedy(text=f"resume it with resume({outcome.run_id!r})"),
        )
    return outcome.state
