"""How to mend what was found: what to change in the workflow, and why that helps."""

from __future__ import annotations

import json

from holdfast.testing.everywhere.effects import Effect
from holdfast.testing.everywhere.step_names import nodes_of, told_node
from holdfast.testing.everywhere.step_names import often as how_often
from holdfast.testing.ledger import Line

OF_PROMISE = "Your workflow did nothing wrong: it is a fault of Holdfast or of the store. Please report it."
OF_RESULT = (
    "What a finished step returned is kept, but nothing else of the process that died is: a global variable, an "
    "object that nodes share, a cache, a file that was half written. Return what later steps need as an update of "
    "the state. If a body goes by the time, by random numbers or by what a service answered, and it may run again, "
    'let the journal remember the value: `ctx.once("now", time.time)`. If the results differ in a way that does '
    "not matter, give `same=`."
)
OF_LOSS = (
    'A step was passed over or took an effect for granted that never happened. With if_interrupted="skip" a step '
    'that died before its effect is passed over too: use "rerun" with a key that the service deduplicates by, or a '
    "function as if_interrupted that looks whether it was done. If the effect is optional, name it in `repeatable=`."
)
OF_MORE = (
    "A body counts or collects in something that is not the state, such as a global variable or a file: a new process "
    "begins without it, and what one life began the next goes through once more. Keep what decides how often it is "
    "done in the state. If the effect is optional, name it in `repeatable=`."
)
OF_OTHER = (
    "What is done comes from something that dies with its process, or changes meanwhile: a global variable, an object "
    "that nodes share, a cache, the time. Return what later steps need as an update of the state, and let the journal "
    'remember what a body looks up and may look up again: `ctx.once("recipient", look_up)`.'
)
OF_SAME = "`same=` gets two states as plain mappings, the expected one first, and answers whether they are the same."
OF_INVARIANT = (
    "Look at the ledger above: what happened twice, or not at all, when the process died there? Effects that must not "
    "be repeated need a key that the service deduplicates by (`ctx.idempotency_key`), or a function as "
    "if_interrupted that looks whether they were done."
)
OF_INVARIANT_UNDISTURBED = (
    "It does not hold although nobody disturbed the run: check the invariant. It gets a `RunSeen`: `.state`, "
    "`.effects` (what `record_effect` was told), `.steps`, `.outcome`; a key of the state also as `run[key]`."
)
OF_CHANGED_REQUEST = (
    "The body ran again and computed its request anew, from the time, a random number, or something that had changed "
    "meanwhile; services refuse that, or keep the first. Let the journal remember what is asked for before asking: "
    '`request = ctx.once("{name} request", make_request)`, or compute it in a node before this one.'
)

IN_A_FILE = (
    "In a workflow file: the function of a `python` step may take `ctx`, a `shell` step finds the key in "
    "$HOLDFAST_IDEMPOTENCY_KEY, and `if_interrupted: ask` lets a person decide."
)

_KEY = (
    "send a key by which the service deduplicates: `{name}(…, idempotency_key=ctx.idempotency_key)`; it is the same "
    "for every run of this step"
)
_LOOK = (
    "if the service knows no keys, say what a resume does with a step that was interrupted, of {told}: "
    "`add_node({node!r}, …, if_interrupted=look)`, where look(ctx) asks the service whether it was done, or "
    'if_interrupted="ask" to let a person decide'
)
_ANYHOW = "If doing it twice is harmless, say so: crash_everywhere(…, repeatable=[{name!r}])."


def of_repetition(first: Effect, again: Effect, ended: Line | None, times: int) -> tuple[str, str]:
    """What happened when an effect happened more often than it should, and what to change."""
    step, name = first.step or "?", first.name
    key, look = _KEY.format(name=name), _LOOK.format(told=told_node(step), node=nodes_of(step)[-1])
    anyhow = _ANYHOW.format(name=name)
    often = how_often(times)
    if first.key is not None and again.key is not None and first.key != again.key:
        what = f"step {step!r} did {name!r} {often}, each time under another key"
        fix = f"A key only helps if it is the same when the step runs again: {key}, or make it of the input."
        return what, f"{fix}\n{anyhow}"
    if ended is not None and ended.what == "left":
        kind, asked = json.loads(ended.detail)
        call = f"ctx.ask({asked!r})" if kind == "ask" else "ctx.sleep"
        until = "when the answer comes" if kind == "ask" else "when its time has come"
        what = (
            f"step {step!r} did {name!r} {often}: once before `{call}`, and again {until}; no crash is needed"
        )
        fix = (
            f"Side effect before `{call.partition('(')[0]}`: a node that waits is left, and {until} it runs again from "
            f"its beginning. Move {name!r} into a node of its own before (or after) the one that waits, or wrap it: "
            f"`ctx.once({name!r}, …)`, which runs it once and remembers its result. And since a process can die "
            f"between the effect and the record of it, {key}."
        )
        return what, f"{fix}\n{anyhow}"
    if ended is not None and ended.what == "failed":
        what = f"step {step!r} did {name!r} {often}: its attempt failed ({json.loads(ended.detail)}) and was repeated"
        fix = (
            "A retry, and a resume after a failure, run the whole body again. Wrap what is done: "
            f"`ctx.once({name!r}, …)`, or give it a node of its own; and {key}."
        )
        return what, f"{fix}\n{anyhow}"
    died = "it ran, the process died before its outcome was stored, and the resume ran it again"
    what = f"step {step!r} did {name!r} {often}: {died}"
    if first.in_once:
        fix = (
            "`ctx.once` remembers a result only after the function has returned: nobody can tell from the journal "
            "whether a process that died in between had done it. Close that gap at the service: "
            f"{key}. Or, {look}."
        )
    else:
        fix = (
            "Nobody can tell from the journal whether a step that was interrupted had done it. Either "
            f"{key}. Or, {look}. (`ctx.once({name!r}, …)` around it narrows the gap to this one call, so that the rest "
            "of the body may run again, but does not close it.)"
        )
    return what, f"{fix}\n{anyhow}"


def of_failure(error: str, undisturbed: bool = False, retries: bool = False) -> str:
    """What to do about a run that does not come to its end, because of a node that `retries` if so."""
    fix = _of_error(error, undisturbed, retries)
    return f"It fails without any crash: mend that first. {fix}".strip() if undisturbed else fix


def _of_error(error: str, undisturbed: bool, retries: bool) -> str:
    if "has no answer" in error or "nobody answers" in error:
        return "Give the answer: crash_everywhere(…, answers={name: value}), or a function of the pause."
    if "CodecError" in error:
        return "What a step returns has to be stored: return plain data, or register the type."
    if "RunConflict" in error:
        return "Somebody else drives the run too: does a node start or resume a run by itself?"
    if "did not end" in error and undisturbed:
        return "Does a body wait or loop for ever? If it just takes longer: give timeout=."
    if "did not end" in error:
        return (
            "A body waits for something that the new process does not have: a thread, a lock, a server that the first "
            "process started. Or it just takes longer: give timeout=."
        )
    if undisturbed:
        return ""
    if retries:
        return (
            "An attempt that a crash interrupts is one of the attempts that `Retry` allows: after it fewer are left. "
            "Allow one more, if the service may fail as often as that; or resume once more, as the error says."
        )
    return (
        "A resumed process begins with nothing but the journal: does a body rely on something that only the first "
        "process had, such as a global variable, a temporary file or an open connection?"
    )
