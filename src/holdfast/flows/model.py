"""What a workflow file may say: the format as frozen models, from which its JSON Schema is made."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

END_ROUTE = "$end"
KINDS = (
    "python",
    "shell",
    "http",
    "agent",
    "ask",
    "set",
    "wait",
    "workflow",
    "parallel",
    "checkpoint",
    "end",
)
"""The kinds of steps; every step is of exactly one."""

STEP_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def seconds(value: Any) -> float:
    """The seconds that `30s`, `1h30m`, `2d` or a plain number mean; anything else is a `ValueError`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < 0 or value != value or value == float("inf"):
            raise ValueError("a duration cannot be negative or endless")
        return float(value)
    if isinstance(value, str):
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if parts and not _DURATION.sub("", text).strip():
            return sum(float(number) * _UNITS[unit] for number, unit in parts)
    raise ValueError("a duration is a number of seconds or text such as 30s, 5m, 1h30m, 2d")


Duration = Annotated[
    float,
    BeforeValidator(seconds),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": r"^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d|w)\s*)+$"},
            ],
            "description": "Seconds, or text such as 30s, 5m, 1h30m, 2d.",
        }
    ),
]
StepName = Annotated[str, Field(pattern=STEP_NAME)]
OnError = Literal["fail_fast", "continue", "all_or_nothing"]


class Part(BaseModel):
    """A part of a workflow file: what is not declared is refused, nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Input(Part):
    """One input of a workflow."""

    type: Literal["string", "integer", "number", "boolean", "array", "object", "any"] = "string"
    required: bool = Field(
        False, description="Refuse to run without it. An input with a default is not missed."
    )
    default: Any = None
    description: str = ""
    choices: list[Any] | None = Field(None, min_length=1)


class Retention(Part):
    """How long runs and their checkpoints are kept."""

    max_checkpoints: int | None = Field(None, ge=1, description="Per workflow, oldest dropped first.")
    max_age_days: float | None = Field(7, gt=0)
    keep_successful: bool = Field(True, description="The last successful run outlives both limits.")
    pause_ttl: Duration | None = Field(None, description="How long an unanswered question takes an answer.")


class Checkpoint(Part):
    """What is saved, where, and what a failure means."""

    enabled: bool = Field(
        True, description="If false, a run is saved only when it pauses, fails, is stopped or ends."
    )
    storage: Literal["sqlite", "files", "memory"] = "sqlite"
    path: str = Field(".holdfast/", description="A folder; ${workflow.name} is the workflow's name.")
    on_failure: Literal["pause", "continue", "rollback"] = "pause"
    on_save_error: Literal["fail", "continue"] = "continue"
    durability: Literal["full", "process", "exit"] = "full"
    interval: int = Field(1, ge=0)
    preserve: Literal["last", "all", "none"] = "last"
    retention: Retention | None = None


class Limits(Part):
    """What a run may use."""

    max_iterations: int = Field(100, ge=1, le=1_000_000, description="Waves of steps, over all resumes.")
    timeout: Duration | None = Field(None, description="Working time of one drive; a resume begins anew.")
    budget: float | None = Field(None, ge=0, description="US dollars for agents, over all resumes.")
    budget_mode: Literal["enforce", "audit"] = "enforce"
    max_parallel: int = Field(16, ge=1, le=1000, description="How many steps run at once.")


class Hooks(Part):
    """Shell commands that are told how a run goes; they change nothing in it."""

    on_start: str | None = None
    on_complete: str | None = None
    on_error: str | None = None


class Workflow(Part):
    """What holds for the whole workflow."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}$")
    description: str = ""
    version: str | int | float | None = None
    tags: list[str] = []
    entry: StepName | None = Field(None, description="The first step; by default the first in the list.")
    inputs: dict[str, Input] = {}
    vars: dict[str, Any] = Field({}, description="Constants, seen as vars.NAME.")
    checkpoint: Checkpoint = Checkpoint()
    limits: Limits = Limits()
    hooks: Hooks = Hooks()
    interrupt_before: list[StepName] = []
    interrupt_after: list[StepName] = []
    on_change: Literal["warn", "fail", "use_saved"] = "warn"
    metadata: dict[str, Any] = {}


class Route(Part):
    """One way on from a step. The first whose condition holds is taken; without one it always holds."""

    to: str
    when: str | None = None


class After(Part):
    """A step that another one waits for."""

    step: StepName
    required: bool = Field(
        True, description="If false, the step runs even if this one failed or was skipped."
    )


class Retry(Part):
    """How often and how patiently a step is tried."""

    attempts: int = Field(3, ge=1, le=100)
    backoff: Literal["exponential", "fixed"] = "exponential"
    delay: Duration = 2.0
    max_delay: Duration = 60.0
    on: Literal["any", "transient", "timeout"] | None = Field(
        None,
        description="Which failures are worth it: by default transient ones for http and agent, any for others.",
    )


class ForEach(Part):
    """Run the step once for every item of a list, or of a dict's values."""

    in_: str | list[Any] | dict[str, Any] = Field(alias="in")
    as_: str = Field("item", alias="as", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    key: str | None = Field(
        None, description="An expression that names the item; by default its index or key."
    )
    max_parallel: int = Field(10, ge=1, le=1000)
    mode: Literal["parallel", "sequential"] = "parallel"
    on_error: OnError = "fail_fast"


class Shell(Part):
    """A command, run by a shell. Values are handed over as variables, never as code."""

    run: str
    cwd: str | None = None
    env: dict[str, str] = {}
    stdin: Any = Field(None, description="Text, or data that is sent as JSON.")
    shell: Literal["sh", "bash"] = "sh"
    ok_codes: list[int] = [0]
    output: Literal["auto", "text", "json", "lines"] = "auto"


class Http(Part):
    """A request over HTTP."""

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] | None = Field(
        None, description="By default GET, or POST with a json or body."
    )
    headers: dict[str, str] = {}
    query: dict[str, Any] = {}
    json_: Any = Field(None, alias="json")
    body: str | None = None
    ok_status: list[int] = Field([], description="By default every 2xx.")
    output: Literal["auto", "text", "json"] = "auto"
    max_bytes: int = Field(10_000_000, ge=1, le=1_000_000_000)


class Price(Part):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class Agent(Part):
    """A call of a language model."""

    model: str
    prompt: str
    system: str = ""
    output: dict[str, Any] | None = Field(None, description="A JSON Schema that the reply must fit.")
    tools: list[str] = Field(
        [], description="Python functions it may call, as module:function or file.py:function."
    )
    temperature: float | None = Field(None, ge=0, le=2)
    max_tokens: int | None = Field(None, ge=1)
    base_url: str | None = None
    api_key: str | None = Field(None, description="A secret: {{ secrets.NAME }}.")
    price: Price | None = None
    max_turns: int = Field(20, ge=1, le=200)


class Choice(Part):
    """One of the answers that a question takes."""

    value: Any
    label: str = ""
    description: str = ""


class Question(Part):
    """One of several questions."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$")
    prompt: str
    choices: list[Any] | None = Field(None, min_length=1)
    type: Literal["string", "integer", "number", "boolean", "array", "object", "any"] = "any"
    default: Any = None
    multiline: bool = False


class Ask(Part):
    """A question to a person, or several."""

    prompt: str = ""
    choices: list[Any] | None = Field(
        None, min_length=1, description="Values, or {value, label, description}."
    )
    type: Literal["string", "integer", "number", "boolean", "array", "object", "any"] = "any"
    questions: list[Question] = []
    timeout: Duration | None = None
    default: Any = Field(None, description="The answer that --skip-gates gives.")
    multiline: bool = False

    @model_validator(mode="after")
    def _asks_something(self) -> Ask:
        if bool(self.prompt) == bool(self.questions):
            raise ValueError("an ask needs either a prompt or questions")
        return self


class Wait(Part):
    """A pause in time."""

    seconds: Duration | None = Field(None, alias="for")
    until: str | None = Field(None, description="An ISO 8601 date and time, with its offset or in UTC.")

    @model_validator(mode="after")
    def _waits_for_something(self) -> Wait:
        if (self.seconds is None) == (self.until is None):
            raise ValueError("a wait needs either `for` or `until`")
        return self


class SubWorkflow(Part):
    """Another workflow file, run as one step."""

    file: str


class Parallel(Part):
    """Steps that run together."""

    steps: list[Step] = Field(min_length=1)
    on_error: OnError = "fail_fast"


class CheckpointFile(Part):
    """Save the state into a checkpoint file, or read one."""

    save: str | None = None
    load: str | None = None

    @model_validator(mode="after")
    def _does_one_thing(self) -> CheckpointFile:
        if (self.save is None) == (self.load is None):
            raise ValueError("a checkpoint step needs either `save` or `load`")
        return self


class End(Part):
    """The end of the run, whatever else could follow."""

    status: Literal["success", "failure"] = "success"
    reason: str = ""


def _one_kind(schema: dict[str, Any]) -> None:
    schema["oneOf"] = [{"required": [kind]} for kind in KINDS]


class Step(Part):
    """One step: its name, what it does (exactly one kind), and what surrounds it."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, json_schema_extra=_one_kind)

    name: StepName
    description: str = ""
    python: str | None = Field(
        None, description="module:function, or file.py:function beside the workflow file."
    )
    shell: str | Shell | None = None
    http: str | Http | None = Field(None, description="A URL to GET, or a request.")
    agent: Agent | None = None
    ask: str | Ask | None = None
    set: dict[str, Any] | None = Field(None, description="Values, seen as this step's output.")
    wait: Duration | Wait | None = None
    workflow: str | SubWorkflow | None = None
    parallel: list[Step] | Parallel | None = None
    checkpoint: CheckpointFile | None = None
    end: Literal["success", "failure"] | End | None = None
    with_: dict[str, Any] = Field({}, alias="with", description="Arguments of python, inputs of workflow.")
    when: str | None = Field(None, description="An expression; if it is false the step is skipped.")
    after: list[StepName | After] | StepName | None = Field(
        None,
        description="The steps it waits for. With `after` anywhere in the file nothing follows by order alone.",
    )
    routes: list[Route] | None = Field(None, min_length=1)
    for_each: ForEach | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    if_interrupted: Literal["rerun", "skip", "ask", "fail"] | None = Field(
        None, description="What a resume does if the step was running when the process died."
    )
    idempotent: bool = Field(True, description="If false, an interrupted step is not repeated unasked.")
    on_error: Literal["fail", "continue"] = Field(
        "fail", description="`continue` records the failure and goes on; steps that need it are skipped."
    )
    interrupt: Literal["before", "after"] | None = None

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


class Definition(Part):
    """A whole workflow file."""

    workflow: Workflow
    steps: list[Step] = Field(min_length=1)
    output: dict[str, Any] | str | None = Field(None, description="What the run results in; templates.")


Parallel.model_rebuild()
Step.model_rebuild()
Definition.model_rebuild()
