"""The immutable mapping that nodes receive, and that a checkpoint is."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from holdfast import clock
from holdfast.errors import CodecError, StateInvalid, StoreError, suggestion
from holdfast.events import Event, Observer, ObserverLike, resolve_observer, tell
from holdfast.state.codec import Codec
from holdfast.state.ops import GUARDED, ReadOnly, Slot, freeze, thaw
from holdfast.threads import resolved

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    StateT = TypeVar("StateT", bound=Mapping[str, object], default=Any)
else:
    from typing import TypeVar

    StateT = TypeVar("StateT")  # What it is by default is for type checkers only.

# The part of a state that a node has declared to read.


class LimitedCells(dict[str, Slot]):
    """Some keys of a state. Asking for another that the state has is refused, so that no declaration is wrong."""

    __slots__ = ("_all", "_owner", "_reads")

    def __init__(
        self, cells: Mapping[str, Slot], reads: Collection[str], owner: str, extra: Collection[str] = ()
    ) -> None:
        super().__init__({key: cells[key] for key in (*reads, *extra) if key in cells})
        self._all, self._reads, self._owner = cells, reads, owner

    def why_hidden(self, key: object) -> str:
        """Return why a node cannot see a key of the state; empty if it can, or if the state has no such key."""
        if key not in self._all or dict.__contains__(self, key):
            return ""
        declared = ", ".join(map(repr, self._reads)) or "nothing"
        return f"node {self._owner!r} declares that it reads {declared}, and not {key!r}; add it to reads="

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        if reason := self.why_hidden(key):
            raise KeyError(reason)
        return False


_DEFAULT_CODEC = Codec()


class SavesState(Protocol):
    """Something that keeps states: a `holdfast.checkpoints.CheckpointStore`."""

    def save(self, state: Any, /) -> Any: ...


class _Core:
    """The fields of a state. Made first and turned into a `State`, whose `__setattr__` refuses."""

    __slots__ = ("_cells", "_codec", "_handed", "_ident", "_node", "_observer", "_run", "_time")
    _cells: Mapping[str, Slot]
    _codec: Codec
    _handed: dict[str, tuple[bytes, Any]] | None
    _ident: Any
    _node: str
    _observer: Observer | None
    _run: str
    _time: float


class State(_Core, Mapping[str, Any]):
    """An immutable mapping of state keys to read-only values, with the place it was taken at.

    `set`, `merge` and `clone` give new states and keep the run, the node and the time. Keys can be
    read as attributes: `state.n` is `state["n"]`. A key with the name of a fact about the state (`run_id`,
    `checkpoint_id`, `checkpoint_node`, `timestamp`) comes before the fact. A key with the name of a method
    (`items`, `keys`, `get` …) is read as `state["items"]`: `state.items()` stays the method, and using
    `state.items` as a value raises an error that says so.
    """

    __slots__ = ()

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        *,
        observer: ObserverLike = None,
        run_id: str | None = None,
        checkpoint_id: str = "",
        checkpoint_node: str = "",
        timestamp: float | None = None,
    ) -> None:
        cells = {}
        if data is not None and not hasattr(data, "items"):
            raise StateInvalid(
                f"a state is made of a mapping, not {data!r:.80}; an observer is State(observer=…)"
            )
        for key, value in (data or {}).items():
            frozen, care = freeze(value)
            cells[key] = Slot(None, None, frozen, care)
        self._cells = cells
        self._codec = _DEFAULT_CODEC
        self._observer = heard_by = resolve_observer(observer)
        self._run = run_id or str(uuid.uuid4())
        self._ident = checkpoint_id
        self._node = checkpoint_node
        self._time = clock.time() if timestamp is None else timestamp
        self._handed = None
        if not cells.keys().isdisjoint(_NAMES):
            object.__setattr__(self, "__class__", _NamesakeState)
        if heard_by is not None:
            tell(heard_by, Event("state.create", self._run, data={"keys": len(cells)}, timestamp=self._time))

    @property
    def run_id(self) -> str:
        """The run this state belongs to."""
        return self._run

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint this state was taken at; empty before the first."""
        return origin_of(self).checkpoint_id

    @property
    def checkpoint_node(self) -> str:
        """The node that produced this state; empty before the first."""
        return self._node

    @property
    def timestamp(self) -> dt.datetime:
        """When this state was produced, in UTC."""
        return dt.datetime.fromtimestamp(self._time, dt.UTC)

    def __getitem__(self, key: str) -> Any:
        try:
            slot = self._cells[key]
        except KeyError:
            raise KeyError(self._lacks(key)) from None
        value = slot.get()
        return value if slot.care != GUARDED else self._private(key, value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key, or `default`; what is missing is not searched for similar names."""
        return self[key] if key in self._cells else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)

    def __contains__(self, key: object) -> bool:
        return key in self._cells

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError:
            raise AttributeError(self._lacks(name)) from None

    def _lacks(self, key: object) -> str:
        hidden = self._cells.why_hidden(key) if isinstance(self._cells, LimitedCells) else ""
        if hidden:
            return hidden
        return f"the state has no key {key!r}{suggestion(key, self._cells) if isinstance(key, str) else ''}"

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _Core.__slots__:
            raise ReadOnly(f"state is read-only: return {{{name!r}: …}} instead of setting state.{name}")
        object.__setattr__(self, name, value)

    def __setitem__(self, key: str, value: Any) -> None:
        raise ReadOnly(f"state is read-only: return {{{key!r}: …}} instead of setting state[{key!r}]")

    def __delitem__(self, key: str) -> None:
        self[key] = None

    __delattr__ = __delitem__

    def __repr__(self) -> str:
        return f"State({{{', '.join(f'{key!r}: {self._shown(key)}' for key in self._cells)}}})"

    def _shown(self, key: str) -> str:
        try:
            return repr(self[key])
        except CodecError:
            return "<unreadable here>"

    def __reduce__(self) -> tuple[Any, ...]:
        origin = origin_of(self)
        return (_rebuild, (self.to_dict(), self._run, origin.checkpoint_id, self._node, self._time))

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other}

    def to_dict(self) -> dict[str, Any]:
        """Return a plain copy that may be changed: ordinary lists, dicts and sets all the way down."""
        return {key: thaw(self[key]) for key in self._cells}

    def set(self, key: str, value: Any) -> State:
        """Return a new state in which `key` is `value`. The observer, if any, gets the event `state.set`."""
        self._tell("state.set", key=key)
        return self._merged({key: value})

    def merge(self, other: Mapping[str, Any]) -> State:
        """Return a new state with the items of `other` put over these. The observer gets `state.merge`."""
        self._tell("state.merge", keys=len(other))
        return self._merged(other)

    def _merged(self, other: Mapping[str, Any]) -> State:
        cells = dict(self._cells)
        for key, value in other.items():
            frozen, care = freeze(value)
            cells[key] = Slot(None, None, frozen, care)
        return self._with(cells)

    def clone(self) -> State:
        """Return an equal state. The observer, if there is one, gets the event `state.clone`."""
        self._tell("state.clone", keys=len(self._cells))
        return self._with(self._cells)

    def _tell(self, type: str, **data: Any) -> None:
        if self._observer is not None:
            tell(self._observer, Event(type, self._run, data=data))

    def set_checkpoint_node(self, node: str) -> State:
        """Return a new state as of now, produced by `node`."""
        state = self.clone()
        state._node, state._time = node, clock.time()
        return state

    def checkpoint(self, store: SavesState) -> State:
        """Save this state in a checkpoint store, and return it with its `checkpoint_id`.

        In a store of your own, which keeps one state a run, that is the run's id.
        """
        save = getattr(store, "save_state", None) or getattr(store, "save", None)
        if not callable(save):
            raise StoreError(
                f"{store!r:.80} cannot save a state; give a holdfast.checkpoints.CheckpointStore, such as "
                "JournalCheckpointStore(store)"
            )
        state = self._with(self._cells)
        state._ident = self._run
        ident = resolved(save(state))
        if isinstance(ident, str) and ident:
            state._ident = ident
        return state

    def _private(self, key: str, value: Any) -> Any:
        if self._handed is None:
            self._handed = {}
        if key not in self._handed:
            try:
                raw = self._codec.encode(value)
            except CodecError as error:
                raise CodecError(f"state key {key!r}: {error}") from None
            self._handed[key] = (raw, freeze(self._codec.decode(raw))[0])
        return self._handed[key][1]

    def _with(self, cells: Mapping[str, Slot]) -> State:
        state = state_view(cells, self._codec, self._run, self._ident, self._node, self._time)
        state._observer = self._observer
        return state


# What the engine does with states. These are no methods, so that keys of any such name can be read as attributes.


def state_view(cells: Mapping[str, Slot], codec: Codec, run: str, ident: Any, node: str, at: float) -> State:
    """Return a state over cells that do not change. `ident` is a checkpoint id, or makes one when called."""
    self = _Core()
    self._cells, self._codec, self._observer = cells, codec, None
    self._run, self._ident, self._node, self._time = run, ident, node, at
    self._handed = None
    self.__class__ = State if cells.keys().isdisjoint(_NAMES) else _NamesakeState
    return self  # type: ignore[return-value]


def observer_of(state: State) -> Observer | None:
    """Return the observer of a state: its own, or, of a state in a node, that of the run."""
    return state._observer


def slots_of(state: State) -> Mapping[str, Slot]:
    """Return the values of a state as they are held."""
    return state._cells


def overlaid(state: State, item: Mapping[str, Slot]) -> State:
    """Return a new state in which an item's keys override those of `state`."""
    return state._with({**state._cells, **item})


def limited(state: State, reads: Collection[str], node: str, extra: Collection[str] = ()) -> State:
    """Return the same state, of which `node` sees the keys that it has declared to read, and `extra` ones."""
    return state._with(LimitedCells(state._cells, reads, node, extra))


def changed_since(state: State, other: State) -> dict[str, Any]:
    """Return the keys and values that are not the very same in `other`."""
    before = other._cells
    return {key: state[key] for key, slot in state._cells.items() if before.get(key) is not slot}


def was_handed_out(state: State) -> bool:
    """Return whether a reader got a private copy of a value, which it may have changed."""
    return state._handed is not None


def check_untouched(state: State) -> None:
    """Refuse the changes that a reader made in place to a value that could not be made read-only."""
    for key, (raw, value) in (state._handed or {}).items():
        if state._codec.encode(value) != raw:
            raise ReadOnly(
                f"state[{key!r}] was changed in place: return {{{key!r}: new_value}} with a changed copy instead"
            )


class Origin(NamedTuple):
    """The run, checkpoint, node and time of a state, even if the state has keys with these names."""

    run_id: str
    checkpoint_id: str
    checkpoint_node: str
    timestamp: float


def origin_of(state: State) -> Origin:
    """Return where a state was taken."""
    if callable(state._ident):
        state._ident = state._ident()
    return Origin(state._run, state._ident, state._node, state._time)


class _NamesakeState(State):
    """A state with keys that are called like attributes of `State`: no such attribute is taken for the key."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name in _NAMES and name in object.__getattribute__(self, "_cells"):
            return self[name] if name in _FACTS else _Namesake(name, object.__getattribute__(self, name))
        return object.__getattribute__(self, name)


class _Namesake:
    """A method of a state that has a key of the same name: it can be called, and nothing else."""

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self._name, self._method = name, method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._method(*args, **kwargs)

    def _refuse(self, *args: Any) -> NoReturn:
        raise TypeError(
            f"state.{self._name} is a method of every state; the key of that name is state[{self._name!r}]"
        )

    __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __str__ = __format__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _refuse
    __int__ = __float__ = __index__ = __enter__ = _refuse
    __hash__ = None  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        self._refuse()


_FACTS = frozenset(Origin._fields)
_NAMES = frozenset(name for name in dir(State) if not name.startswith("_"))


def _rebuild(data: dict[str, Any], run: str, ident: str, node: str, at: float) -> State:
    return State(data, run_id=run, checkpoint_id=ident, checkpoint_node=node, timestamp=at)
