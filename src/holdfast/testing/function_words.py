"""Advice of the crash kit in words of functions: what to change in a step, and in the body of a workflow."""

from __future__ import annotations

OF_RESULT = (
    "What a finished step returned is kept, but nothing else of the process that died is: a global variable, a cache, "
    "a file that was half written. Return from steps what later ones need. The workflow's own body runs again on "
    "every resume: let it take the time and random numbers from `holdfast.now()`, `random()` and `uuid()`, and make a "
    "step of whatever else it looks up; `validate()` of the workflow finds such places. If the results differ in a "
    "way that does not matter, give `same=`."
)
OF_MORE = (
    "Something is done as often as a process comes to it: it is counted in a global variable or a file, or called "
    "where nothing is recorded. Make it a step, and decide how often it is done by arguments and results of steps. If "
    "the effect is optional, name it in `repeatable=`."
)
OF_OTHER = (
    "What is done comes from something that dies with its process, or changes meanwhile: a global variable, a cache, "
    "the time. Give steps as arguments what they need, and make a step of what looks it up."
)
_OF_BODY = (
    "{name!r} is done in the body of the workflow, outside of any step. The body runs again from its beginning on "
    "every resume: make it a step, a function under `@step` that the workflow calls. A finished step is never run "
    "again."
)

_WORDS = (
    ("`ctx.ask", "`ask"),
    ("`ctx.sleep", "`sleep"),
    ("ctx.", "context()."),
    ("into a node of its own", "into a step of its own"),
    ("give it a node of its own", "give it a step of its own"),
    ("a node that waits is left", "a step that waits is left"),
    ("does a node start", "does a step start"),
    ("in a node before this one", "in a step before this one"),
)


def in_words_of_functions(text: str) -> str:
    """Return advice that is meant for nodes of graphs in words of functions."""
    for words, instead in _WORDS:
        text = text.replace(words, instead)
    return text


def of_body(name: str) -> str:
    """Return what to do about an effect that is none of a step."""
    return _OF_BODY.format(name=name)
