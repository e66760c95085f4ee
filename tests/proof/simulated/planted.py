"""Bugs that the schedules have to see: `python -m tests.proof.simulated.planted` plants each and looks."""

from __future__ import annotations

import sys

from tests.proof.planting import Planted, planted, prove

_PROOF = ("tests.proof.schedules", "--times", "12000")
_TESTS = ("pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests/proof/test_schedules.py", "-k")
_DRIVE = "engine/loop.py"
_SAVING = "engine/saving.py"

PLANTED = (
    Planted(
        "a writer ignores conflicts",
        "fence",
        "journal/writer.py",
        "        if conflict is not None:\n            self._refusal = self._conflict",
        "        if False:\n            self._refusal = self._conflict",
        _PROOF,
    ),
    Planted(
        "a store accepts any append",
        "fence",
        "tests/simulator/server.py",
        "        elif kept is None or kept.head != after:\n",
        "        elif kept is None:\n",
        _PROOF,
        (
            (
                "tests/simulator/server.py",
                "            if entry.seq != after:\n",
                "            if False:\n",
            ),
            (
                "tests/simulator/server.py",
                "        elif link and kept.entries[-1].chain != link:\n",
                "        elif False:\n",
            ),
        ),
    ),
    Planted(
        "steps run before their intent is stored",
        "intent",
        _SAVING,
        "        if (self.saves_every_wave and self.run.status == RunStatus.RUNNING) or self._is_due():\n",
        "        if self.run.status != RunStatus.RUNNING and self._is_due():\n",
        _PROOF,
    ),
    Planted(
        "async steps run before their intent is stored",
        "intent",
        _SAVING,
        "        if self._is_due():\n            await self.flush_async()\n",
        "        if self.run.status != RunStatus.RUNNING and self._is_due():\n            await self.flush_async()\n",
        _PROOF,
    ),
    Planted(
        "a save is acknowledged before it is committed",
        "intent, acknowledged",
        "journal/commit.py",
        "            await asyncio.wait((job.future,))\n",
        "            job.future.add_done_callback(lambda done: done.exception())\n            return\n",
        _PROOF,
    ),
    Planted(
        "any entry counts as the own one whose reply was lost",
        "fence",
        "journal/writer.py",
        "        if not stored or stored[0].chain != ours[0].chain:\n",
        "        if not stored:\n",
        _PROOF,
    ),
    Planted(
        "a run is taken from a live owner",
        "finished",
        "engine/runner.py",
        "        if takeover or info.status != RunStatus.RUNNING or not is_alive(info.owner, self._store):\n",
        "        if True:\n",
        _PROOF,
    ),
    Planted(
        "claims and resumes ignore leases",
        "finished",
        "engine/owner.py",
        "        return leases.is_live(lease) and (not is_here(owner) or _may_run(facts))\n",
        "        return False\n",
        _PROOF,
    ),
    Planted(
        "an owner that counted as dead does not check before its next step",
        "finished",
        _SAVING,
        "        if lapses != self._seen:\n",
        "        if False:\n",
        _PROOF,
    ),
    Planted(
        "messages are read from the first",
        "signals",
        "engine/commands/inbox.py",
        "self._journal.inboxes.look(self._saving.run_id, self._saving.run.inbox_seen)",
        "self._journal.inboxes.look(self._saving.run_id, 0)",
        _PROOF,
        (
            (
                "engine/commands/inbox.py",
                "self._journal.store.inbox(self._saving.run_id, self._saving.run.inbox_seen)",
                "self._journal.store.inbox(self._saving.run_id, 0)",
            ),
            (
                "engine/commands/inbox.py",
                "        if number > self._saving.run.inbox_seen:\n",
                "        if True:\n",
            ),
        ),
    ),
    Planted(
        "retries start one poll early",
        "timers",
        _DRIVE,
        "        if at is not None and self.time_left(at) > 0:\n",
        "        if at is not None and self.time_left(at) > 0.25:\n",
        _PROOF,
    ),
    Planted(
        "sleeps end one poll early",
        "timers",
        "engine/context.py",
        "        while (left := self._host.time_left(until)) > 0:\n            if self.cancelled:\n",
        "        while (left := self._host.time_left(until)) > 0.25:\n            if self.cancelled:\n",
        _PROOF,
    ),
    Planted(
        "questions run out one poll early",
        "timers",
        "engine/decide.py",
        "        if (pause.expires_at is not None and has_passed(pause.expires_at))"
        " or (sleeps and pause.kind == SLEEP)\n",
        "        if (pause.expires_at is not None and has_passed(pause.expires_at - 0.5))"
        " or (sleeps and pause.kind == SLEEP)\n",
        _PROOF,
    ),
    Planted(
        "a clock that is set back prolongs a sleep",
        "timers",
        "journal/journal.py",
        "        return min(by_wall, end - ticks)\n",
        "        return by_wall\n",
        _PROOF,
    ),
    Planted(
        "finished steps of an open wave run again after a crash",
        "finished, each-item",
        "journal/fold.py",
        "        elif step.status == RUNNING:\n            step.status = IN_DOUBT\n"
        "            step.crashes += crashed\n",
        "        elif step.status in (RUNNING, DONE):\n            step.status = IN_DOUBT\n"
        "            step.crashes += crashed\n",
        _PROOF,
    ),
    Planted(
        "the next attempt forgets results of once",
        "effects, finished",
        "engine/context.py",
        "        raw = self._step.notes.get(key)\n",
        "        raw = self._step.notes.get(key) if self.attempt == 1 else None\n",
        _PROOF,
    ),
    Planted(
        "concurrent calls of once all run its function",
        "effects",
        "engine/once.py",
        "        if running is None:\n",
        "        if True:\n",
        _PROOF,
    ),
    Planted(
        "a function given to once runs before its intent is stored",
        "intent",
        "engine/once.py",
        "                    context._host.note(\n",
        "                    context._host.record_of_step(\n",
        _PROOF,
    ),
    Planted(
        "one record too many is pruned",
        "pruning",
        "tests/simulator/server.py",
        "        dropped = horizon.seq - kept.first\n        kept.entries, kept.first"
        " = kept.entries[dropped:], horizon.seq\n",
        "        dropped = horizon.seq - kept.first\n        kept.entries, kept.first"
        " = kept.entries[dropped + 1 :], horizon.seq + 1\n",
        _PROOF,
    ),
    Planted(
        "a snapshot at the horizon is one entry old",
        "pruning",
        "journal/copying.py",
        "    snapshot = journal.make_snapshot(journal.load(info, codec, horizon), codec)\n",
        "    old = journal.load(info, codec, max(1, horizon - 1))\n"
        "    snapshot = journal.make_snapshot(old, codec)\n"
        "    snapshot = type(snapshot)(horizon, snapshot.at, snapshot.chain, snapshot.body)\n",
        _PROOF,
    ),
    Planted(
        "an abandoned step still starts in its thread",
        "finished",
        "threads.py",
        "            if future.cancelled():\n",
        "            if False:\n",
        (*_TESTS, "at_once"),
        (
            (
                "engine/context.py",
                "        if self._is_over or self._host.stop is not None or self._host.has_left_run:\n",
                "        if False:\n",
            ),
            (_DRIVE, "        if self.has_left_run:\n", "        if False:\n"),
        ),
    ),
    Planted(
        "a refused answer is reported as applied",
        "signals",
        "engine/commands/control.py",
        "    for refusal in run.refusals:\n        if refusal.number == number:\n",
        "    for refusal in run.refusals:\n        if False:\n",
        (*_TESTS, "two_people"),
    ),
    Planted(
        "a dropped run is never claimed again",
        "not-stranded",
        "fleet/claims.py",
        '            return "" if has_owner(self._store, info) else "orphaned"\n',
        '            return ""\n',
        _PROOF,
    ),
    Planted(
        "a paused run that is due is not claimed",
        "not-stranded",
        "fleet/claims.py",
        "        return self._deadlines.left(info.run, info.due_at) <= within\n",
        '        return self._deadlines.left(info.run, info.due_at) <= within and info.status != "paused"\n',
        _PROOF,
    ),
)


def main(names: list[str]) -> int:
    """Plant the bugs whose names have one of these words, or all."""
    missed = 0
    for bug in PLANTED:
        if names and not any(name in bug.name for name in names):
            continue
        with planted(bug) as source:
            seen = prove(bug.proof, source)
        missed += not seen.is_caught
        first = next((line for line in seen.said.splitlines() if line.startswith("  ")), seen.said[-300:])
        count = next((line for line in seen.said.splitlines() if " schedules, " in line), "").partition(",")[
            0
        ]
        print(f"{'caught' if seen.is_caught else 'MISSED'}: {bug.name}: {count}:{first[:160]}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
