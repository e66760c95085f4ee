"""Checkpoint files: a state and the node to go on with, in one pickle that is read with care."""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import clock
from holdfast.data.codec import Codec
from holdfast.data.frozen import thaw
from holdfast.data.types import BUILTIN
from holdfast.engine.saved_config import check_config
from holdfast.errors import CheckpointNotFound, CodecError, CorruptJournal, StoreError
from holdfast.journal.provenance import Provenance

if TYPE_CHECKING:
    from holdfast.engine.confirmation import Disclosure

logger = logging.getLogger("holdfast")

VERSION = "1.0"
SUFFIX = ".pkl"


def is_file(target: object) -> bool:
    """Whether a resume target means a checkpoint file: a path object, or text ending in `.pkl`."""
    return isinstance(target, Path) or (isinstance(target, str) and target.endswith(SUFFIX))


def save(
    path: Path,
    state: Mapping[str, Any],
    node: str,
    config: Mapping[str, Any],
    next_nodes: tuple[str, ...] | None = None,
    gate: str = "",
) -> Path:
    """Write a checkpoint file, whole or not at all. `gate` is the node that it was written before."""
    content: dict[str, Any] = {
        "state": {key: thaw(state[key]) for key in state},
        "node": node,
        "config": {key: thaw(value) for key, value in config.items()},
        "timestamp": clock.time(),
        "version": VERSION,
    }
    if next_nodes is not None:
        content["next"] = list(next_nodes)
    if gate:
        content["gate"] = gate
    import pickle
    import tempfile

    try:
        data = pickle.dumps(content, protocol=4)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"checkpoint {path} cannot be saved: {error}") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        raise StoreError(f"checkpoint {path} cannot be saved: {error}") from error
    logger.debug("saved checkpoint %s (node %s)", path, node)
    return path


class CheckpointFile(NamedTuple):
    """What is in a checkpoint file, and the digest of the very bytes that it was read from."""

    path: Path
    content: dict[str, Any]
    digest: str

    @property
    def has_workflow(self) -> bool:
        """Whether a workflow file is in it, so that it tells what is run and not only where to go on."""
        return "flow" in self.content["config"]

    def disclosure(self) -> Disclosure:
        """Return all that a run from this file would run with."""
        from holdfast.engine.confirmation import Disclosure

        place = {name: self.content[name] for name in ("node", "next", "gate") if name in self.content}
        own = self.content["config"]
        resume = f"holdfast resume {shlex.quote(str(self.path))} --workflow FILE"
        check_config(own, f"go on with a workflow file of your own ({resume})")
        flow, rest = own.get("flow"), {key: value for key, value in own.items() if key != "flow"}
        config = {"flow": flow, "taken from the file": rest, "goes on with": place}
        name = str(flow.get("path", "")) if isinstance(flow, Mapping) else ""
        return Disclosure("", name, self.provenance(), self.digest, config, ())

    def provenance(self) -> Provenance:
        """Return where a run comes from that is begun from this file."""
        return Provenance(f"checkpoint file {self.path.name}", clock.time())


def load(path: Path, codec: Codec | None = None) -> dict[str, Any]:
    """Read a checkpoint file. Nothing is imported or run because the file names it."""
    return read(path, codec).content


def read(path: Path, codec: Codec | None = None) -> CheckpointFile:
    """Read a checkpoint file, once, with the digest of what was read."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointNotFound(f"checkpoint file not found: {path}") from None
    except OSError as error:
        raise StoreError(f"checkpoint file {path} cannot be read: {error}") from error
    from holdfast.engine.unpickling import Unpickler

    types = codec.types if codec is not None else BUILTIN
    try:
        content = Unpickler(data, types).load()
    except CodecError as error:
        raise CodecError(f"checkpoint file {path} is refused: {error}") from None
    except Exception as error:
        raise CorruptJournal(f"corrupt checkpoint file {path}: {error}") from error
    _check(path, content)
    logger.debug("loaded checkpoint %s (node %s)", path, content["node"])
    return CheckpointFile(path, content, hashlib.blake2b(data, digest_size=16).hexdigest())


def _check(path: Path, content: Any) -> None:
    wanted = {"state": dict, "node": str, "config": dict}
    if not isinstance(content, dict):
        raise CodecError(
            f"incompatible checkpoint file {path}: it holds a {type(content).__name__}, not a dict"
        )
    for key, kind in wanted.items():
        if not isinstance(content.get(key), kind):
            raise CodecError(
                f"incompatible checkpoint file {path}: {key!r} is missing or not a {kind.__name__}"
            )
    if content.get("version") != VERSION:
        raise CodecError(
            f"incompatible checkpoint file {path}: version {content.get('version')!r}, this reads {VERSION!r}"
        )


def automatic_path(directory: Path, node: str) -> Path:
    """Where the checkpoint of an interrupt goes: the node and the time in milliseconds; never an existing file."""
    stamp = int(clock.time() * 1000)
    while (path := directory / f"{node}_{stamp}{SUFFIX}").exists():
        stamp += 1
    return path
