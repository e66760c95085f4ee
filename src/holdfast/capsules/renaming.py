"""A capsule's run under another id: the same history, chained anew, with a key of its own."""

from __future__ import annotations

import dataclasses
import hashlib

from holdfast.capsules.capsule import Capsule
from holdfast.capsules.contents import write_entry, write_facts, write_message, write_snapshot
from holdfast.capsules.sections import Kind, Sink, Writer
from holdfast.data.seal import Seal
from holdfast.errors import CodecError
from holdfast.journal.checkpoints import sealed_mark
from holdfast.journal.journal import Journal, genesis, link
from holdfast.stores.base import Entry, Snapshot


def write_renamed(capsule: Capsule, run: str, sink: Sink, seal: Seal | None) -> None:
    """Write a capsule of the same run under another id.

    The key is made of the old one and the new id, so that importing a capsule twice under one id finds its run.
    Bodies that are sealed for their run are sealed anew, which takes the key.
    """
    facts = dataclasses.replace(capsule.facts, run=run, key=_key(capsule.facts.key, run))
    bodies = _Bodies(capsule, run, seal)
    chain, writer = genesis(run, facts.key), Writer(sink)
    writer.add(Kind.FACTS, write_facts(facts))
    first = next(iter(capsule.read(capsule.facts.run)))
    if capsule.beginning is not None:
        begun = _chained(first, facts.key, chain, bodies.of(first.seq, first.body))
        writer.add(Kind.SNAPSHOT, write_snapshot(_moved(capsule.beginning, begun.chain, bodies)))
        writer.add(Kind.ENTRY, write_entry(begun))
        chain = begun.chain
    for entry in capsule.read(capsule.facts.run, 0 if capsule.beginning is None else first.seq):
        own = _chained(entry, facts.key, chain, bodies.of(entry.seq, entry.body))
        writer.add(Kind.ENTRY, write_entry(own))
        chain = own.chain
    for message in capsule.inbox(capsule.facts.run):
        body = bodies.of(0, message.body)
        writer.add(Kind.MESSAGE, write_message(dataclasses.replace(message, body=body)))
    writer.close()


class _Bodies:
    """Bodies of one run, as they are for another."""

    def __init__(self, capsule: Capsule, run: str, seal: Seal | None) -> None:
        if (capsule.sealed or capsule.sealed_messages) and seal is None:
            raise CodecError(
                "its journal is encrypted with the key of a store and for its own run id; set HOLDFAST_KEY to that "
                "key to import it under another id"
            )
        self._old, self._new, self._journal = capsule.facts.run, run, Journal(capsule, seal)

    def of(self, seq: int, body: bytes) -> bytes:
        """A body of the old run, for the new one."""
        opened = self._journal.open_body(self._old, seq, body)
        return body if opened is body else self._journal.seal_body(self._new, seq, opened)


def _chained(entry: Entry, key: bytes, chain: bytes, body: bytes) -> Entry:
    mark = None if entry.mark is None else sealed_mark(entry.mark, key, entry.seq, entry.at)
    found = link(chain, entry.seq, entry.at, mark, body)
    return entry._replace(chain=found, body=body, mark=mark)


def _moved(snapshot: Snapshot, chain: bytes, bodies: _Bodies) -> Snapshot:
    body = bodies.of(-snapshot.seq, snapshot.body[16:])
    digest = hashlib.blake2b(chain + body, digest_size=16).digest()
    return dataclasses.replace(snapshot, chain=chain, body=digest + body)


def _key(key: bytes, run: str) -> bytes:
    """Eight bytes, the first of them below 128, that only this run under this id has."""
    made = hashlib.blake2b(key + run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return bytes([made[0] & 0x7F]) + made[1:]
