"""What can be done to a run from its page: each action says what it would do, and acts once, also if sent twice."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from starlette.routing import BaseRoute

from holdfast.errors import HoldfastError
from holdfast.service.reading import RequestInvalid
from holdfast.service.requests import Keyed, once
from holdfast.values import RunStatus
from holdfast.web.pages.fields import Field, fields_of, read_fields
from holdfast.web.pages.rendering import Asked, Page, Pages, run_path, segment
from holdfast.web.pages.wording import HELP, lasted, money, one_line, said, without_request
from holdfast.web.problems import status_of

MOST_REMEMBERED = 1_000
"""Of how many forms that were sent it is remembered what they led to."""

MOST_PLANNED = 100
"""How many rows of a plan are shown."""

LOOKED_THROUGH = 300
"""Among how many of the last events an answer is looked for."""

DONE = {
    "pause": "The run is asked to pause: the steps under way finish first.",
    "cancel": "The run is asked to stop.",
    "resume": "The run goes on.",
    "skip": "The step is skipped.",
    "rerun": "This is the new run.",
    "fork": "This is the new run.",
    "promote": "The result of the fork is now the result of this run.",
}
"""What a page says after an action."""

MORE = "The run has your answer, and asks more."
"""What a page says after an answer, while another question is open."""

STOPPING = ("pause", "cancel")
"""The actions that are over when the run has stopped."""


def done_text(name: str, to: str, facts: Mapping[str, Any]) -> str:
    """Return what a page says after an action; nothing if what was asked for has happened since."""
    if name == "answer":
        asked = {pause["id"]: pause["prompt"] or pause["name"] for pause in facts["pauses"]}
        is_new = any(ident != to for ident in asked)
        return MORE if is_new else "Your answer was given."
    is_going = facts["goes_on"] or (facts["status"] == RunStatus.RUNNING and not facts["dead"])
    return "" if name in STOPPING and not is_going else DONE.get(name, "")


# Acting once.


class Acts:
    """The forms that were sent: each acts once, also if it is sent twice at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Lock] = {}
        self._led: OrderedDict[str, Any] = OrderedDict()

    def once(self, asked: Asked, call: str, key: str, given: Mapping[str, Any]) -> Any:
        """Call a method of the service for a form with a key; return what it returned the first time."""
        if not key or len(key) > 200 or not key.isascii() or not key.isprintable():
            raise RequestInvalid("this form has no key; load the page again")
        content = hashlib.sha256(json.dumps([call, given], sort_keys=True).encode()).hexdigest()
        caller = asked.caller
        keyed = Keyed.of(caller.name, caller.namespace, f"form {key} {content[:16]}", {**given, "call": call})
        with self._lock:
            busy = self._busy.setdefault(keyed.name, threading.Lock())
        with busy:
            if keyed.name not in self._led:
                self._keep(keyed.name, once(asked.service, keyed, call, given))
            return self._led[keyed.name]

    def _keep(self, name: str, found: Any) -> None:
        with self._lock:
            self._led[name] = found
            while len(self._led) > MOST_REMEMBERED:
                self._busy.pop(self._led.popitem(last=False)[0], None)


# What each action asks, says and does.


@dataclass(frozen=True, slots=True)
class Asking:
    """What an action says before it acts, and the fields that it takes."""

    says: str
    button: str
    fields: Sequence[Field] = ()
    rows: Sequence[tuple[str, str, str]] = ()
    """Of a plan: step, what becomes of it, and why."""
    notes: Sequence[str] = ()
    refused: str = ""
    """Why it cannot be done."""


@dataclass(frozen=True, slots=True)
class Action:
    """Something that can be done to a run."""

    name: str
    call: str
    label: str
    ask: Callable[[Asked], Asking]
    give: Callable[[Asked, Mapping[str, Any]], dict[str, Any]]
    """Returns what the method is called with, from the values of the form."""
    is_danger: bool = False


_REASON = Field("Reason", "text", description="Kept in the history of the run.")


def _plain(says: str, button: str, *fields: Field) -> Callable[[Asked], Asking]:
    return lambda asked: Asking(says, button, fields)


def _reason(asked: Asked, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"reason": values["Reason"]} if values.get("Reason") else {}


def _resume(asked: Asked) -> Asking:
    """Show the plan of a resume."""
    says = (
        "Workers go on with the run. Finished steps are kept; this is what becomes of each step that has begun. "
        "The others run when the run comes to them."
    )
    try:
        plan = asked.service.plan_resume(asked.run_id)
    except HoldfastError as error:
        problem = one_line(error.public_problem, 500)
        return Asking(
            "Workers that know its workflow go on with the run.",
            "Resume",
            notes=[f"There is no plan: {problem}."],
        )
    notes = [f"The workflow changed: {change}." for change in plan["changes"][:20]]
    if plan["seconds_saved"]:
        notes.append(
            f"What is kept took {lasted(plan['seconds_saved'])}, and cost {money(plan['cost_saved'])}."
        )
    if plan["seconds_to_come"] is not None:
        notes.append(f"The rest took about {lasted(plan['seconds_to_come'])} before.")
    return Asking(says, "Resume", (), _rows(plan["steps"], notes), notes, plan["refused"])


def _rows(steps: Sequence[Mapping[str, Any]], notes: list[str]) -> list[tuple[str, str, str]]:
    if len(steps) > MOST_PLANNED:
        notes.append(f"{len(steps) - MOST_PLANNED:,} more steps are not listed.")
    return [
        (each["step"], _BECOMES.get(each["what"], each["what"]), each["reason"])
        for each in steps[:MOST_PLANNED]
    ]


_BECOMES = {
    "kept": "kept",
    "rerun": "runs again",
    "new": "runs",
    "in_doubt": "in doubt",
    "asked": "somebody is asked",
}


def _rerun(asked: Asked) -> Asking:
    """Show what a rerun would run again, with the inputs to change."""
    step, notes = _step(asked), list[str]()
    plan = asked.service.plan_rerun(asked.run_id, step)
    says = (
        f"A new run begins right before {step!r}. It keeps what does not depend on it, and runs {step!r} "
        "and all that comes after it again. This run stays as it is."
    )
    fields = (
        replace(_changes(asked), written=json.dumps(_inputs(asked), indent=2, ensure_ascii=False)),
        Field(
            "Output",
            "json",
            description=f"If this is given, {step!r} does not run, and this is its output. JSON.",
        ),
    )
    return Asking(says, "Run again", fields, _rows(plan["steps"], notes), notes)


def _changes(asked: Asked) -> Field:
    is_file = asked.service.overview(asked.run_id)["workflow_file"] is not None
    places = (
        '"inputs.NAME" and "steps.STEP.output" are places' if is_file else "the keys of the state are places"
    )
    return Field("Changes", "json", description=f"A JSON object with a value for each place; {places}.")


def _inputs(asked: Asked) -> dict[str, Any]:
    """Return the inputs of a run of a workflow file by their places, unless they are large."""
    found = asked.service.overview(asked.run_id)
    if found["workflow_file"] is None or not isinstance(found["inputs"], dict):
        return {}
    places = {f"inputs.{name}": value for name, value in found["inputs"].items()}
    return places if len(json.dumps(places)) < 20_000 and '"$type"' not in json.dumps(places) else {}


def _give_rerun(asked: Asked, values: Mapping[str, Any]) -> dict[str, Any]:
    before = _inputs(asked)
    update = {place: value for place, value in _object(values).items() if before.get(place, ...) != value}
    given: dict[str, Any] = {"step": _step(asked)}
    if update:
        given["update"] = update
    if "Output" in values:
        given["output"] = values["Output"]
    return given


def _fork(asked: Asked) -> Asking:
    at = asked.given("at")
    where = "at its newest checkpoint"
    if at:
        points = asked.service.points(asked.run_id)
        where = f"at checkpoint {points.number(at)} of {len(points)}"
    says = f"A new run begins {where}, and goes on from there with the state it had. This run stays as it is."
    return Asking(says, "Fork", (_changes(asked),))


def _give_fork(asked: Asked, values: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {"at": asked.given("at") or None}
    return {**given, "update": _object(values)} if _object(values) else given


def _object(values: Mapping[str, Any]) -> dict[str, Any]:
    found = values.get("Changes", {})
    if not isinstance(found, dict):
        raise RequestInvalid('Changes must be a JSON object, such as {"inputs.name": "you"}')
    return found


def _skip(asked: Asked) -> Asking:
    says = f"{_step(asked)!r} does not run, and leaves nothing behind. The steps after it run without its result."
    return Asking(says, "Skip the step", (_REASON,))


def _promote(asked: Asked) -> Asking:
    parent = asked.service.overview(asked.run_id)["parent"]
    name = parent["run_id"] if parent else "its parent"
    says = (
        f"Run {name!r}, from which this one was forked, gets the state and the result of this run. "
        "What it had before stays in its history, and can be brought back by a rollback."
    )
    return Asking(says, "Promote", (_REASON,))


def _step(asked: Asked) -> str:
    if not (step := asked.given("step")):
        raise RequestInvalid("the step is missing")
    return step


ACTIONS = {
    action.name: action
    for action in (
        Action(
            *("pause", "pause", "Pause"),
            _plain(
                "The steps under way finish and are saved. Nothing else begins until somebody resumes the run.",
                "Pause",
                _REASON,
            ),
            _reason,
        ),
        Action(
            *("cancel", "cancel", "Cancel"),
            _plain(
                "The run is stopped, also in the middle of steps. Finished steps are kept, and it can be resumed.",
                "Cancel the run",
                _REASON,
            ),
            _reason,
            is_danger=True,
        ),
        Action("resume", "resume", "Resume", _resume, lambda asked, values: {}),
        Action(
            "skip",
            "skip",
            "Skip",
            _skip,
            lambda asked, values: {"step": _step(asked), **_reason(asked, values)},
            True,
        ),
        Action("rerun", "rerun", "Run again from here", _rerun, _give_rerun),
        Action("fork", "fork", "Fork", _fork, _give_fork),
        Action("promote", "promote", "Promote", _promote, _reason, is_danger=True),
        Action(
            *("export", "export", "Export"),
            _plain(
                "The whole run is downloaded as a capsule: one file with its history and its state, which "
                "`holdfast capsule import` takes. Who has the file can read all values of the run.",
                "Download",
            ),
            lambda asked, values: {},
        ),
    )
}


def action_path(run_id: str, name: str, **query: Any) -> str:
    """Return the path of the page that says what an action would do."""
    return run_path(run_id, "do", name, **query)


def actions(asked: Asked, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the actions that a run takes now and that the caller may ask for."""
    offered = set(_offered(facts))
    return [
        {
            "name": name,
            "label": ACTIONS[name].label,
            "path": action_path(asked.run_id, name),
            "danger": ACTIONS[name].is_danger,
        }
        for name in ("resume", "pause", "cancel", "fork", "promote", "export")
        if name in offered and asked.may(ACTIONS[name].call)
    ]


def _offered(facts: Mapping[str, Any]) -> Iterator[str]:
    status, asks = facts["status"], any(pause["takes_answer"] for pause in facts["pauses"])
    is_executed = status == RunStatus.RUNNING and not facts["dead"]
    is_stopped = not is_executed and not asks and status not in (RunStatus.COMPLETED, RunStatus.QUEUED)
    if facts["is_taken"] and (facts["held"] or is_stopped):
        yield "resume"
    if is_executed or status == RunStatus.QUEUED:
        yield "pause"
    if status not in (RunStatus.COMPLETED, RunStatus.CANCELLED, RunStatus.FAILED):
        yield "cancel"
    if facts["checkpoints"] and facts["is_taken"]:
        yield "fork"
    if facts["parent"] and status == RunStatus.COMPLETED:
        yield "promote"
    yield "export"


def step_actions(asked: Asked, step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the actions that a step takes now and that the caller may ask for."""
    names = ["rerun"] if step["visits"] and step["is_known"] else []
    names += ["skip"] if step["status"] in ("next", "retrying", "waiting", "interrupted", "failed") else []
    return [
        {
            "name": name,
            "label": ACTIONS[name].label,
            "path": action_path(asked.run_id, name, step=step["name"]),
            "danger": ACTIONS[name].is_danger,
        }
        for name in names
        if asked.may(ACTIONS[name].call)
    ]


def helps(asked: Asked, facts: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what can be done about a run that does not go on by itself, in words, with the page that does it."""
    return [
        {"text": text, "path": path}
        for text, path, method in _helps(asked.run_id, facts)
        if not method or asked.may(method)
    ]


Help = tuple[str, str, str]
"""What can be done, the page that does it, and the method of the service that the caller has to have."""


def _helps(run_id: str, facts: Mapping[str, Any]) -> Iterator[Help]:
    status, error, origin = facts["status"], facts["error"], facts["provenance"]
    resume = action_path(run_id, "resume")
    if origin is not None and not origin["confirmed_by"]:
        yield HELP["confirm"], "", ""
        return
    if not facts["is_taken"] and status != RunStatus.COMPLETED:
        yield (
            f"This server does not have the workflow {facts['workflow']!r}: go on with the run where it was started.",
            "",
            "",
        )
        resume = ""
    is_gated = any(pause["kind"] in ("before", "after") for pause in facts["pauses"])
    if facts["held"]:
        yield "Let workers try again: resume the run.", resume, "resume"
    elif facts["dead"] and facts["queue"]:
        yield "Workers take the run over by themselves, and go on after its last finished step.", "", ""
    elif status == RunStatus.FAILED and error is not None:
        yield from _helps_after_failure(run_id, facts, resume)
    elif resume and (facts["dead"] or status in (RunStatus.CANCELLED, RunStatus.INTERRUPTED)):
        yield "Resume the run: it goes on after its last finished step.", resume, "resume"
    elif resume and status == RunStatus.PAUSED and is_gated:
        yield "Resuming the run passes its gate.", resume, "resume"


def _helps_after_failure(run_id: str, facts: Mapping[str, Any], resume: str) -> Iterator[Help]:
    error = facts["error"]
    step = error["step"]
    if any(each["name"] == step and each["status"] == "skipped" for each in facts["steps"]):
        if resume:
            yield f"{step!r} is skipped: resume the run, and it goes on without it.", resume, "resume"
        return
    if error["type"] == "StepInterrupted":
        yield "Find out whether the step took effect before it was interrupted.", "", ""
    elif resume:
        text = "Remove the cause, then resume: finished steps are kept, and the failed one runs again."
        yield text, resume, "resume"
    if step:
        look = run_path(run_id, "steps", segment(step))
        yield f"Look at {step!r}: its attempts, what it could read, and its error.", look, ""
        if facts["is_known"]:
            again = action_path(run_id, "rerun", step=step)
            yield f"Run again from {step!r} in a new run, with other inputs.", again, "rerun"
        if resume:
            yield f"Skip {step!r}, then resume.", action_path(run_id, "skip", step=step), "skip"


# Pages and forms.


class ShowRun(Protocol):
    """What shows the page of a run again after an answer was refused."""

    def __call__(
        self, asked: Asked, status: int, problem: str = "", pause: str = "", fields: Sequence[Field] = ()
    ) -> Page: ...


def routes(pages: Pages, show_run: ShowRun) -> list[BaseRoute]:
    """Return the routes of the actions."""
    acts = Acts()
    made: list[BaseRoute] = [
        pages.form("/runs/{run_id}/answer", lambda asked: _answer(acts, asked, show_run), role="answer")
    ]
    for action in ACTIONS.values():
        path = f"/runs/{{run_id}}/do/{action.name}"
        made.append(pages.view(path, _asking(action), role="operate"))
        if action.call != "export":
            made.append(pages.form(path, _acting(acts, action), role="operate"))
    return made


def _asking(action: Action) -> Callable[[Asked], Page]:
    def show(asked: Asked) -> Page:
        return _action_page(asked, action, action.ask(asked), 200)

    return show


def _acting(acts: Acts, action: Action) -> Callable[[Asked], str | Page]:
    def act(asked: Asked) -> str | Page:
        asking = action.ask(asked)
        values, fields = read_fields(asking.fields, asked.form)
        again = replace(asking, fields=fields)
        if any(field.problem for field in fields):
            return _action_page(asked, action, again, 400, ["Some fields need another value."])
        try:
            given = {"run_id": asked.run_id, **action.give(asked, values)}
            found = acts.once(asked, action.call, asked.form.get("key", ""), given)
        except HoldfastError as error:
            return _action_page(asked, action, again, status_of(error), said(error))
        return run_path(_shown_next(found, asked.run_id), done=action.name)

    return act


def _shown_next(found: Any, run_id: str) -> str:
    """Return the run that is shown after an action: the new one, or the one that was changed."""
    facts = found.get("run", found) if isinstance(found, dict) else {}
    return str(facts.get("run_id", run_id))


def _action_page(
    asked: Asked, action: Action, asking: Asking, status: int, problems: Sequence[str] = ()
) -> Page:
    query = {name: asked.given(name) for name in ("step", "at") if asked.given(name)}
    facts = {
        "run": asked.service.status(asked.run_id),
        "tab": "run",
        "action": action,
        "asking": asking,
        "path": action_path(asked.run_id, action.name),
        "query": query,
        "key": secrets.token_urlsafe(16),
        "problems": problems,
        "back": run_path(asked.run_id, "steps", segment(query["step"]))
        if "step" in query
        else run_path(asked.run_id),
    }
    name = f"{action.label}: {query['step']}" if "step" in query else action.label
    return Page("run_action.html", f"{name} · {asked.run_id}", {**facts, "heading": name}, status)


# Answers.


def answer_fields(pause: Mapping[str, Any]) -> list[Field]:
    """Return the fields of a question."""
    schema = pause["schema"]
    if schema and isinstance(schema.get("properties"), Mapping) and "enum" not in schema:
        return fields_of(schema)
    one = dict(schema) if schema else {"type": "string"}
    one.pop("default", None)
    return fields_of({"properties": {"Your answer": one}, "required": ["Your answer"]})


def _answer(acts: Acts, asked: Asked, show_run: ShowRun) -> str | Page:
    """Give an answer; show the form again if it is refused, or what became of the question if that is closed."""
    ident, form = asked.form.get("pause", ""), asked.form
    pauses = asked.service.status(asked.run_id)["pauses"]
    pause = next((each for each in pauses if each["id"] == ident), None)
    if pause is None:
        return _closed(asked, ident, show_run)
    values, fields = read_fields(answer_fields(pause), form)
    if wrong := [field for field in fields if field.problem]:
        return show_run(asked, 400, f"{wrong[0].name} {wrong[0].problem}.", ident, fields)
    value = values["Your answer"] if [field.name for field in fields] == ["Your answer"] else values
    given = {"run_id": asked.run_id, "answers": {ident: value}}
    try:
        acts.once(asked, "answer", form.get("key", ""), given)
    except HoldfastError as error:
        if any(each["id"] == ident for each in asked.service.status(asked.run_id)["pauses"]):
            return show_run(asked, status_of(error), " ".join(said(error)), ident, fields)
        return _closed(asked, ident, show_run)
    return run_path(asked.run_id, done="answer", to=ident)


def _closed(asked: Asked, ident: str, show_run: ShowRun) -> Page:
    """Show what became of a question that takes no answer any more."""
    events = asked.service.tail(asked.run_id, None, LOOKED_THROUGH)["events"]
    if ident not in (found := answered(events)):
        return show_run(asked, 409, "This question takes no answer any more, so yours was not taken.")
    return show_run(asked, 409, f"{found[ident]} Your answer was not taken.")


def answered(events: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the questions that were answered, by the ids of their pauses: each with who answered what, in words."""
    found = {}
    for data in (each["data"] for each in events if each["type"] == "answer"):
        by = without_request(str(data.get("by") or "somebody"))
        answer = one_line(json.dumps(data.get("answer"), ensure_ascii=False), 200)
        name = one_line(data.get("name") or data["pause"], 120)
        found[data["pause"]] = f"The question {name!r} was answered by {by} meanwhile, with {answer}."
    return found
