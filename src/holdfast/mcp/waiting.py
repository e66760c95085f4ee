"""Runs that a call waits for: their progress, forms for what they ask, and what the person filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from holdfast.errors import AnswerRejected, HoldfastError, NotPaused, RunFinished
from holdfast.mcp.declaring import BadArguments, Declared
from holdfast.mcp.forms import (
    answer_in,
    asked_schema,
    form_key,
    form_of,
    is_asking,
    read_form_key,
)
from holdfast.mcp.replies import Data
from holdfast.mcp.tools import Call
from holdfast.service.calls import shown

Context = ServerRequestContext[Any, Any]
Found = TypeVar("Found")

FIRST_LOOK, LAST_LOOK = 0.02, 0.5
"""The seconds between the first two looks at a run that a call waits for, and the most between two looks."""


class Note(Protocol):
    """Notes in the journal of calls who asked for what."""

    async def __call__(
        self,
        context: Context,
        call: str,
        given: Mapping[str, Any],
        filled: types.InputResponses | None = None,
        refusal: HoldfastError | None = None,
    ) -> None: ...


async def in_thread(function: Callable[..., Found], *args: Any, **options: Any) -> Found:
    """Call the service in a thread; a client that goes away does not wait for it."""
    return await anyio.to_thread.run_sync(partial(function, *args, **options), abandon_on_cancel=True)


async def follow(asked: Call, context: Context, run_id: str, seconds: float) -> Data:
    """Return a run when it pauses or ends, or when the time is over; report its progress meanwhile.

    The client may go away at any time: the run goes on.
    """
    progress, pause, end = Progress(context), FIRST_LOOK, anyio.current_time() + seconds
    while True:
        status: Data = await in_thread(asked.service.status, run_id)
        left = end - anyio.current_time()
        is_over = not status["goes_on"] or left <= 0
        if is_over or progress.is_wanted:
            run: Data = await in_thread(asked.service.run, run_id)
            await progress.report(run)
        if is_over:
            return run
        await anyio.sleep(min(pause, left))
        pause = min(pause * 1.5, LAST_LOOK)


class Progress:
    """The progress of a run, reported to a client that wants it, whenever a step is over."""

    def __init__(self, context: Context) -> None:
        self._session, self._last = context.session, -1
        self.is_wanted = "progressToken" in (context.meta or {}) or "progress_token" in (context.meta or {})

    async def report(self, run: Data) -> None:
        """Report how many steps are over, if they are more than before."""
        done = run["progress"]["done"]
        if self.is_wanted and done > self._last:
            self._last = done
            await self._session.report_progress(done, run["progress"]["total"] or None, activity(run))


def activity(run: Data) -> str:
    """Return what a run does, in words."""
    now = [step["name"] for step in run["steps"] if step["status"] in ("running", "retrying")]
    return f"{run['status']}: {', '.join(now[:5])}" if now else str(run["status"])


# What a run asks, as forms for the person behind a client.


def can_ask(context: Context) -> bool:
    """Return True if a client can show forms that a result of a call carries, and call again."""
    asking = getattr(context.session.client_capabilities, "elicitation", None)
    if asking is None or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return False
    return asking.form is not None or asking.url is None


def forms_of(run: Data, problems: Mapping[str, str] | None = None) -> types.InputRequests:
    """Return the forms of all that a run asks, by their keys; `problems` say why answers were not taken."""
    wrong = problems or {}
    found: types.InputRequests = {}
    for pause in run.get("pauses") or ():
        if is_asking(pause):
            key = form_key(run["run_id"], pause)
            found[key] = form_of(run["run_id"], run["workflow"], pause, wrong.get(key, ""))
    return found


def run_of(filled: types.InputResponses) -> str:
    """Return the run whose forms were filled in."""
    places = [read_form_key(key) for key in filled]
    runs = {place[0] for place in places if place is not None}
    if len(runs) != 1 or None in places:
        raise BadArguments("these are no forms of this server; call the tool again without them")
    return runs.pop()


ASKING = frozenset({"execute", "execute_inline", "answer", "resume", "fork", "rerun"})
"""The methods of tools that wait for a run, and so may bring its forms."""


def refuse_forms_of_others(tool: Declared, arguments: Data, run_id: str) -> None:
    """Raise if the forms that a call brings are of another run than the one it is about."""
    if tool.method not in ASKING:
        raise BadArguments(f"{tool.name} asks nothing, and takes no forms; call it again without them")
    named = arguments.get("run_id", arguments.get("job_id"))
    if tool.method in ("answer", "resume") and named != run_id:
        raise BadArguments(
            f"these are forms of run {run_id!r:.80}, and {tool.name} is about {named!r:.80}; fill in its own"
        )


def refuse_forms_of_other_workflows(asked: Call, tool: Declared, arguments: Data, run_id: str) -> None:
    """Raise if a call that starts a run of a workflow brings forms of a run of another one."""
    match tool.method:
        case "execute":
            wanted = arguments["workflow"]
        case "execute_inline":
            wanted = asked.service.catalogue.inline(arguments["text"]).name
        case _:
            return
    workflow = asked.service.status(run_id)["workflow"]
    if workflow != wanted:
        raise BadArguments(
            f"these are forms of a run of workflow {workflow!r:.80}, and {tool.name} is about {wanted!r:.80}; fill in "
            "those of its own run"
        )


def answered(filled: types.InputResponses) -> list[str]:
    """Return in words what forms answer: which pause of which run."""
    places = [read_form_key(key) for key in filled]
    return [
        "forms of no run" if place is None else f"form of run_id={shown(place[0])} pause={shown(place[1])}"
        for place in places
    ]


class Taken(NamedTuple):
    """What became of forms: why answers were not taken, by key, and whether the person declined one of them."""

    problems: dict[str, str]
    is_declined: bool


def take_forms(asked: Call, run_id: str, filled: types.InputResponses) -> Taken:
    """Answer what a run asks with the forms that were filled in.

    A form of a pause that is over is ignored: the client repeats itself, or somebody else was faster.
    """
    run, problems, is_declined = asked.service.run(run_id), dict[str, str](), False
    open_pauses = {form_key(run_id, pause): pause for pause in run.get("pauses") or () if is_asking(pause)}
    for key, form in filled.items():
        if not isinstance(form, types.ElicitResult) or form.action != "accept":
            is_declined = True
            continue
        if key not in open_pauses:
            continue
        try:
            is_declined = not _take(asked, run_id, open_pauses[key], form) or is_declined
        except AnswerRejected as error:
            problems[key] = error.public_problem
        except (NotPaused, RunFinished):
            continue
    return Taken(problems, is_declined)


def _take(asked: Call, run_id: str, pause: Data, form: types.ElicitResult) -> bool:
    """Answer a pause with a form, or pass its gate; return False if the person lets the run wait there."""
    value = answer_in(form, asked_schema(pause))
    if pause["takes_answer"]:
        asked.service.answer(run_id, value, question=pause["question"], who=asked.who)
        return True
    if value is not True:
        return False
    asked.require("resume")
    asked.service.resume(run_id, who=asked.who)
    return True
