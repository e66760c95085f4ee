"""The part of a state that a node has declared to read."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.data.ops import Slot


class LimitedCells(dict[str, Slot]):
    """Some keys of a state. Asking for another that the state has is refused, so that no declaration is wrong."""

    __slots__ = ("_all", "_owner", "_reads")

    def __init__(
        self, cells: Mapping[str, Slot], reads: Collection[str], owner: str, extra: Collection[str] = ()
    ) -> None:
        super().__init__({key: cells[key] for key in (*reads, *extra) if key in cells})
        self._all, self._reads, self._owner = cells, reads, owner

    def why_hidden(self, key: object) -> str:
        """Why a key of the state is not seen; empty if the state has none such either."""
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
