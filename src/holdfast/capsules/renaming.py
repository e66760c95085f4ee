"""A capsule's run under another id, or in another namespace: the same history, chained anew."""

from __future__ import annotations

import dataclasses
import hashlib

from holdfast.capsules.capsule import Capsule
from holdfast.capsules.contents import Facts, write_entry, write_facts, write_message, write_snapshot
from holdfast.capsules.sections import Kind, Sink, Writer
from holdfast.data.seal import Seal
from holdfast.errors import CodecError
from holdfast.journal.bodies import Bodies
from holdfast.journal.checkpoints import sealed_mark
from holdfast.journal.journal import genesis, link
from holdfast.stores.base import Entry, Message, Snapshot


def write_renamed(capsule: Capsule, run: str, namespace: str, sink: Sink, seal: Seal | None) -> None:
    """Write a capsule of the same run under another id, or for another namespace.

    The key of a run with another id is made of the old key and the new id, so that importing a capsule twice under one
    id finds its run. Bodies that are sealed are sealed anew for their new place, which takes the key.
    """
    key = capsule.facts.key if run == capsule.facts.run else _key(capsule.facts.key, run)
    facts = dataclasses.replace(capsule.facts, run=run, key=key, namespace=namespace)
    move = _Move(capsule, facts, seal)
    chain, writer = genesis(run, facts.key), Writer(sink)
    writer.add(Kind.FACTS, write_facts(facts))
    first = next(iter(capsule.read(capsule.facts.run)))
    if capsule.beginning is not None:
        begun = move.entry(first, chain)
        writer.add(Kind.SNAPSHOT, write_snapshot(move.snapshot(capsule.beginning, begun.chain)))
        writer.add(Kind.ENTRY, write_entry(begun))
        chain = begun.chain
    for entry in capsule.read(capsule.facts.run, 0 if capsule.beginning is None else first.seq):
        own = move.entry(entry, chain)
        writer.add(Kind.ENTRY, write_entry(own))
        chain = own.chain
    for message in capsule.inbox(capsule.facts.run):
        writer.add(Kind.MESSAGE, write_message(move.message(message)))
    writer.close()


class _Move:
    """What is stored of one run, as it is for another."""

    def __init__(self, capsule: Capsule, facts: Facts, seal: Seal | None) -> None:
        if (capsule.sealed or capsule.sealed_messages) and seal is None:
            raise CodecError(
                "its journal is encrypted with the key of a store, for its own run id and namespace; set HOLDFAST_KEY "
                "to that key to import it elsewhere"
            )
        self._old = Bodies(seal, capsule.namespace, capsule.facts.run, capsule.facts.key)
        self._new = Bodies(seal, facts.namespace, facts.run, facts.key)
        self._key = facts.key

    def entry(self, entry: Entry, chain: bytes) -> Entry:
        """An entry, after one whose chain is given."""
        mark = None if entry.mark is None else sealed_mark(entry.mark, self._key, entry.seq, entry.at)
        body = self._old.reseal_entry(entry, self._new, chain, mark)
        return Entry(entry.seq, entry.at, link(chain, entry.seq, entry.at, mark, body), body, mark)

    def snapshot(self, snapshot: Snapshot, chain: bytes) -> Snapshot:
        """A snapshot of the entry whose chain is given."""
        body = self._old.reseal_snapshot(snapshot, self._new, chain)
        return dataclasses.replace(snapshot, chain=chain, body=body)

    def message(self, message: Message) -> Message:
        """A message, which keeps its number."""
        body = self._old.reseal_message(message, self._new, message.number)
        return dataclasses.replace(message, body=body)


def _key(key: bytes, run: str) -> bytes:
    """Eight bytes, the first of them below 128, that only this run under this id has."""
    made = hashlib.blake2b(key + run.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return bytes([made[0] & 0x7F]) + made[1:]
