"""The format of workflow files as frozen models, which give parsing, checks, JSON Schema and reference page."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, ClassVar, Literal, Self

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
    "while_loop",
    "file",
    "json_state",
    "sql",
    "checkpoint",
    "end",
)
"""The kinds of steps; every step is of exactly one."""

STEP_NAME = r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_LONGEST_DURATION = 100


def seconds(value: Any) -> float:
    """Return the seconds that `30s`, `1h30m`, `2d` or a plain number mean; raise `ValueError` for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _finite(value)
    if isinstance(value, str) and len(value) <= _LONGEST_DURATION:
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if parts and not _DURATION.sub("", text).strip():
            return _finite(sum(float(number) * _UNITS[unit] for number, unit in parts))
    raise ValueError("a duration is a number of seconds or text such as 30s, 5m, 1h30m, 2d")


def _finite(value: float) -> float:
    if not 0 <= value < float("inf") or value > sys.float_info.max:
        raise ValueError("a duration cannot be negative or endless")
    return float(value)


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
Timeout = Annotated[Duration, Field(gt=0)]
StepName = Annotated[str, Field(pattern=STEP_NAME)]
ValueType = Literal["string", "integer", "number", "boolean", "array", "object", "any"]
OnError = Literal["fail_fast", "continue", "all_or_nothing"]


def _optional(default: Any, description: str, **rules: Any) -> Any:
    """Declare a field that may be left out."""
    return Field(default=default, description=description, **rules)


_NOT_GIVEN: tuple[Any, ...] = (None, "", [])


class Part(BaseModel):
    """A part of a workflow file: what is not declared is refused, nothing changes once it is read.

    `short` is the field that a value alone stands for: `shell: ls` is short for `shell: {run: ls}`.
    `templates` are the fields that may hold templates. Of the fields of `either` exactly one is given.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    short: ClassVar[str] = ""
    templates: ClassVar[tuple[str, ...]] = ()
    either: ClassVar[tuple[str, ...]] = ()
    """Some fields, and what is wrong if several or none of them are given."""

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, data: Any) -> Any:
        return {cls.short: data} if cls.short and not isinstance(data, (dict, cls)) else data

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if self.either:
            *fields, problem = self.either
            if sum(getattr(self, field) not in _NOT_GIVEN for field in fields) != 1:
                raise ValueError(problem)
        return self


class Input(Part):
    """One input of a workflow."""

    type: ValueType = _optional("string", "Of which type its values are.")
    required: bool = _optional(False, "Refuse to run without it. An input with a default is not missed.")
    default: Any = _optional(None, "What it is if it is not given.")
    description: str = _optional("", "What it is for; shown when it is missing.")
    choices: list[Any] | None = _optional(None, "The values it may have.", min_length=1)


class Retention(Part):
    """How long runs and their checkpoints are kept."""

    max_checkpoints: int | None = _optional(10, "How many are kept, oldest dropped first.", ge=1)
    per: Literal["run", "workflow"] = _optional(
        "run", "Whether `max_checkpoints` counts in each run, or over all runs of the workflow."
    )
    max_age_days: float | None = _optional(7, "Older ones are dropped.", gt=0)
    keep_successful: bool = _optional(True, "The last successful run outlives both limits.")
    pause_ttl: Duration | None = _optional(
        None,
        "How long a question takes an answer; then it has expired.",
    )


class Checkpoint(Part):
    """What is saved, where, and what a failure means."""

    enabled: bool = _optional(
        True, "If false, a run is saved only when it pauses, fails, is stopped or ends."
    )
    storage: Literal["sqlite", "files", "memory", "postgres"] = _optional(
        "sqlite",
        "One SQLite file, a folder per run, nothing that outlives the process, or a PostgreSQL server.",
    )
    path: str = _optional(".holdfast/", "A folder; ${workflow.name} is the workflow's name.")
    url: str | None = _optional(
        None,
        "With `storage: postgres`: the server, without a password. By default what libpq finds in the environment "
        "(PGHOST, PGDATABASE …). HOLDFAST_STORE and WORKFLOW_CHECKPOINT_DSN come first.",
    )
    on_failure: Literal["pause", "continue", "rollback"] = _optional(
        "pause", "Keep the run to be resumed, go on without the step, or go back to where the run began."
    )
    on_save_error: Literal["fail", "continue"] = _optional(
        "continue", "What happens if a checkpoint cannot be saved."
    )
    durability: Literal["full", "process", "exit"] = _optional(
        "full",
        "What a saved step survives: a power cut (full) or a killed process (process); "
        "`exit` saves only at a pause, a failure or the end.",
    )
    interval: int = _optional(1, "Save every so many waves of steps.", ge=0)
    preserve: Literal["last", "all", "none"] = _optional(
        "last",
        "What a completed run leaves: all of it, which only `last` leaves to retention, or `none` of it.",
    )
    retention: Retention | None = _optional(
        Retention(), "How long runs and checkpoints are kept; `null` keeps them for ever."
    )


class Limits(Part):
    """What a run may use."""

    max_iterations: int | None = _optional(
        None,
        "Waves of steps, over all resumes. By default 100, and ten for each step of a longer file.",
        ge=1,
        le=1_000_000,
    )
    timeout: Timeout | None = _optional(None, "Working time of one execution; a resume starts at zero.")
    budget: float | None = _optional(None, "US dollars for agents, over all resumes.", ge=0)
    budget_mode: Literal["enforce", "audit"] = _optional(
        "enforce", "Stop when the budget is spent, or only tell."
    )
    max_parallel: int = _optional(16, "How many steps run at once.", ge=1, le=1000)


class Hooks(Part):
    """Shell commands that run when a run starts, completes or fails; they change nothing in it."""

    on_start: str | None = _optional(None, "Run when a run begins.")
    on_complete: str | None = _optional(None, "Run when a run has completed.")
    on_error: str | None = _optional(None, "Run when a run has failed.")


class WorkflowSettings(Part):
    """What holds for the whole workflow."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}$", description="Its name; runs are kept under it."
    )
    description: str = _optional("", "What it is for.")
    version: str | int | float | None = _optional(None, "Yours to choose; it is kept with every run.")
    tags: list[str] = _optional([], "Words to find its runs by.")
    entry: StepName | None = _optional(None, "The first step; by default the first in the list.")
    inputs: dict[str, Input] = _optional({}, "What a run is given, by name.")
    vars: dict[str, Any] = _optional({}, "Constants, seen as vars.NAME.")
    checkpoint: Checkpoint = _optional(Checkpoint(), "How its runs are saved.")
    limits: Limits = _optional(Limits(), "What its runs may use.")
    hooks: Hooks = _optional(Hooks(), "Commands that run when a run starts, completes or fails.")
    interrupt_before: list[StepName] = _optional([], "Steps before which a run pauses.")
    interrupt_after: list[StepName] = _optional([], "Steps after which a run pauses.")
    on_change: Literal["warn", "fail", "use_saved"] = _optional(
        "warn", "What a resume does if the file has changed since the run began."
    )
    metadata: dict[str, Any] = _optional({}, "Anything else; it is kept with every run.")


class Route(Part):
    """One way on from a step. The first whose condition holds is taken; without one it always holds."""

    to: str = Field(description="The step that follows, or $end.")
    when: str | None = _optional(None, "An expression; without one the route is always taken.")


class After(Part):
    """A step that another one waits for."""

    short = "step"

    step: StepName = Field(description="Its name.")
    required: bool = _optional(True, "If false, the step runs even if this one failed or was skipped.")


Afters = Annotated[
    list[After],
    BeforeValidator(lambda value: value if isinstance(value, list) else [] if value is None else [value]),
]


class Retry(Part):
    """Retry policy of a step."""

    attempts: int = _optional(3, "How often it is tried, the first time included.", ge=1, le=100)
    backoff: Literal["exponential", "fixed"] = _optional(
        "exponential", "Whether the delay doubles from try to try."
    )
    delay: Duration = _optional(2.0, "How long to wait before the second try.")
    max_delay: Duration = _optional(
        60.0, "The longest wait between two tries, whatever a server asks for with Retry-After."
    )
    on: Literal["any", "transient", "timeout"] | None = _optional(
        None, "Which failures are worth it: by default transient ones for http and agent, any for others."
    )


class CircuitBreaker(Part):
    """When a step that keeps failing is left alone for a while, in all runs of one process."""

    failures: int = _optional(5, "After how many failed tries in a row it fails at once.", ge=1, le=1000)
    reset: Timeout = _optional(30.0, "For how long; then one try is let through.")


class ForEach(Part):
    """Run the step once for every item of a list, or of a dict's values."""

    in_: str | list[Any] | dict[str, Any] = Field(
        alias="in", description="A list, fields, or one template that gives them."
    )
    as_: str = _optional(
        "item", "The name that the item has in templates.", alias="as", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    key: str | None = _optional(None, "An expression that names the item; by default its index or key.")
    max_parallel: int = _optional(10, "How many items are worked on at once.", ge=1, le=1000)
    mode: Literal["parallel", "sequential"] = _optional("parallel", "At once, or one after the other.")
    on_error: OnError = _optional(
        "fail_fast", "Stop at the first failure, go on with the others, or fail unless all succeed."
    )


class Shell(Part):
    """A command, run by a shell. Values are handed over as variables, never as code."""

    short = "run"
    templates = ("run", "cwd", "env", "stdin")

    run: str = Field(description="The command or script; a template.")
    cwd: str | None = _optional(None, "The folder it runs in, relative to the workflow file.")
    env: dict[str, str] = _optional({}, "Variables it is given beside those of the environment.")
    stdin: Any = _optional(None, "Text, or data that is sent as JSON.")
    programs: list[str] = _optional(
        [],
        "Programs, such as `./charge.sh` or `python3 report.py`, that may be given values in `run` "
        "because they do not run them as code.",
    )
    shell: Literal["sh", "bash"] = _optional("sh", "Which shell runs it.")
    ok_codes: list[int] = _optional([0], "The exit codes that are no failure.")
    output: Literal["auto", "text", "json", "lines"] = _optional(
        "auto", "How its standard output is read: `auto` takes JSON if it is JSON."
    )


class Http(Part):
    """A request over HTTP."""

    short = "url"
    templates = ("url", "headers", "query", "json", "body")

    url: str = Field(description="The address; a template.")
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] | None = _optional(
        None, "By default GET, or POST with a json or body."
    )
    headers: dict[str, str] = _optional({}, "Header fields; templates.")
    query: dict[str, Any] = _optional({}, "What is added to the address after `?`.")
    json_: Any = _optional(None, "Data to send as JSON.", alias="json")
    body: str | None = _optional(None, "The text to send.")
    ok_status: list[int] = _optional([], "By default every 2xx.")
    output: Literal["auto", "text", "json"] = _optional(
        "auto", "How the reply is read: `auto` goes by its content type."
    )
    max_bytes: int = _optional(
        10_000_000, "A longer reply, before or after it is decoded, is a failure.", ge=1, le=1_000_000_000
    )

    @model_validator(mode="after")
    def _sends_one_thing(self) -> Http:
        if self.json_ is not None and self.body is not None:
            raise ValueError("a request has either json or a body")
        return self


class Price(Part):
    """US dollars per million tokens."""

    input: float = Field(ge=0, description="For what is sent.")
    output: float = Field(ge=0, description="For what comes back.")


class Agent(Part):
    """A call of a language model."""

    templates = ("model", "prompt", "system", "base_url", "api_key")

    model: str = Field(description="Whose model and which, as provider:name.")
    prompt: str = Field(description="What it is asked; a template.")
    system: str = _optional("", "How it is to behave; a template.")
    output: dict[str, Any] | None = _optional(
        None,
        "A JSON Schema that the reply must fit. Patterns cannot look around or refer back: they are "
        "matched in time that is proportional to the text.",
    )
    tools: list[str] = _optional([], "Python functions it may call, as module:function or file.py:function.")
    temperature: float | None = _optional(None, "How freely it words its reply.", ge=0, le=2)
    max_tokens: int | None = _optional(None, "The longest reply.", ge=1)
    base_url: str | None = _optional(None, "The address of a server that speaks the provider's protocol.")
    api_key: str | None = _optional(None, "A secret: {{ secrets.NAME }}.")
    price: Price | None = _optional(None, "What it costs, if that is not known.")
    max_turns: int = _optional(20, "How often it may be called in one step, tools included.", ge=1, le=200)


class Choice(Part):
    """One of the answers that a question takes."""

    short = "value"

    value: Any = Field(description="What the answer is.")
    label: str = _optional("", "What is shown for it.")
    description: str = _optional("", "What it means.")


class Question(Part):
    """One of several questions."""

    templates = ("prompt",)

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", description="Its name among the answers.")
    prompt: str = Field(description="What is asked; a template.")
    choices: list[Choice] | None = _optional(None, "The answers it takes.", min_length=1)
    type: ValueType = _optional("any", "Of which type the answer is.")
    default: Any = _optional(None, "The answer if nobody gives one in time, or with --skip-gates.")
    multiline: bool = _optional(False, "Whether the answer may have several lines.")


class Ask(Part):
    """A question to a person, or several."""

    short = "prompt"
    templates = ("prompt",)
    either = ("prompt", "questions", "an ask needs either a prompt or questions")

    prompt: str = _optional("", "What is asked; a template.")
    choices: list[Choice] | None = _optional(None, "Values, or {value, label, description}.", min_length=1)
    type: ValueType = _optional("any", "Of which type the answer is.")
    questions: list[Question] = _optional([], "Several questions instead of one.")
    timeout: Timeout | None = _optional(
        None, "How long it takes an answer; then the default is taken, or the step fails."
    )
    default: Any = _optional(None, "The answer if nobody gives one in time, or with --skip-gates.")
    multiline: bool = _optional(False, "Whether the answer may have several lines.")


class Wait(Part):
    """A pause in time."""

    short = "for"
    templates = ("until",)
    either = ("seconds", "until", "a wait needs either `for` or `until`")

    seconds: Duration | None = _optional(None, "How long.", alias="for")
    until: str | None = _optional(None, "An ISO 8601 date and time, with its offset or in UTC.")


class SubWorkflow(Part):
    """Another workflow file, run as one step."""

    short = "file"

    file: str = Field(description="Its path, relative to this file.")


class Parallel(Part):
    """Steps that run together."""

    short = "steps"

    steps: list[Step] = Field(min_length=1, description="The members.")
    on_error: OnError = _optional(
        "fail_fast", "Stop at the first failure, go on with the others, or fail unless all succeed."
    )


class WhileLoop(Part):
    """Steps that run one after the other, again and again, as long as a condition holds."""

    condition: str = Field(description="An expression; it is evaluated before every iteration.")
    steps: list[Step] = Field(min_length=1, description="What is done in each iteration, in this order.")
    max_iterations: int = _optional(100, "The most iterations.", ge=1, le=100_000)
    on_limit: Literal["fail", "stop", "ask"] = _optional(
        "fail",
        "What happens if the condition still holds then: the step fails, the loop ends, or a person is asked for more.",
    )


class Change(Part):
    """One change of a file's text."""

    templates = ("replace", "with", "append")
    either = ("replace", "append", "a change needs either `replace` or `append`")

    replace: str | None = _optional(
        None, "A text that is in the file, once unless `all` is true; a template."
    )
    with_: str = _optional("", "The text in its place; a template.", alias="with")
    all: bool = _optional(False, "Whether every occurrence is replaced.")
    append: str | None = _optional(None, "A text to add at the end; a template.")


_OUTSIDE = "Whether the path may lead out of the folder of the workflow file."


class File(Part):
    """A text file that is created, edited or read. Files are written whole or not at all."""

    templates = ("create", "content", "edit", "read")
    either = ("create", "edit", "read", "a file step needs one of `create`, `edit` and `read`")

    create: str | None = _optional(None, "The path of the file to write; a template.")
    content: Any = _optional("", "Text, or data that is written as JSON.")
    overwrite: bool = _optional(True, "If false, an existing file with other content is a failure.")
    edit: str | None = _optional(None, "The path of the file to change; a template.")
    changes: list[Change] = _optional([], "What is changed in it, in this order.")
    read: str | list[str] | None = _optional(
        None, "A path, or a list of paths and patterns such as docs/*.md; templates."
    )
    output: Literal["text", "json", "lines"] = _optional("text", "How what is read is understood.")
    max_bytes: int = _optional(10_000_000, "More than this is not read or written.", ge=1, le=1_000_000_000)
    outside: bool = _optional(False, _OUTSIDE)

    @model_validator(mode="after")
    def _edits_something(self) -> Self:
        if (self.edit is None) == bool(self.changes):
            raise ValueError("`edit` and `changes` belong together; give both or none")
        return self


class JsonState(Part):
    """Data that is kept in a JSON file beside the runs. Writers wait for each other."""

    templates = ("read", "write", "merge", "state")
    either = ("read", "write", "merge", "a json_state step needs one of `read`, `write` and `merge`")

    read: str | None = _optional(None, "The path of the file to read; a template.")
    write: str | None = _optional(None, "The path of the file to write; a template.")
    merge: str | None = _optional(None, "The path of the file to merge into; a template.")
    state: Any = _optional(
        None, "The data to write or to merge: fields are merged into fields, all else is replaced."
    )
    default: Any = _optional(None, "What a read gives if there is no file; without it that is a failure.")
    max_bytes: int = _optional(10_000_000, "More than this is not read or written.", ge=1, le=1_000_000_000)
    outside: bool = _optional(False, _OUTSIDE)


class Query(Part):
    """One statement of several."""

    short = "query"
    templates = ("params",)

    query: str = Field(description="SQL, with :name where a parameter belongs; not a template.")
    params: dict[str, Any] = _optional({}, "The parameters, by name; templates.")


class Sql(Part):
    """SQL in one transaction. Values are parameters, never a part of the SQL."""

    templates = ("url", "params")
    either = ("query", "queries", "a sql step needs either `query` or `queries`")

    url: str = Field(
        description="sqlite:///FILE, relative to the workflow file, or postgresql://USER@HOST/DATABASE; a template."
    )
    query: str = _optional("", "SQL, with :name where a parameter belongs; not a template.")
    params: dict[str, Any] = _optional({}, "The parameters of `query`, by name; templates.")
    queries: list[Query] = _optional([], "Several statements instead of one.")
    max_rows: int = _optional(1000, "More rows than this are a failure.", ge=1, le=100_000)
    max_bytes: int = _optional(10_000_000, "More data than this is a failure.", ge=1, le=1_000_000_000)
    outside: bool = _optional(False, "Whether a SQLite file may be outside the folder of the workflow file.")


class CheckpointFile(Part):
    """Save the state into a checkpoint file, or read one."""

    templates = ("save", "load")
    either = ("save", "load", "a checkpoint step needs either `save` or `load`")

    save: str | None = _optional(None, "The path of the file to write; a template.")
    load: str | None = _optional(None, "The path of the file to read; a template.")


class End(Part):
    """The end of the run. Beside other branches a success ends its own branch only."""

    short = "status"
    templates = ("reason",)

    status: Literal["success", "failure"] = _optional("success", "How the run ends.")
    reason: str = _optional("", "Why; a template.")


class Step(Part):
    """One step: its name, what it does (exactly one kind), and what surrounds it."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        json_schema_extra={"oneOf": [{"required": [kind]} for kind in KINDS]},
    )

    name: StepName = Field(description="Its name, once in the file, members of parallel steps included.")
    description: str = _optional("", "What it is for.")
    python: str | None = _optional(None, "module:function, or file.py:function beside the workflow file.")
    shell: Shell | None = _optional(None, "A command, or more about one.")
    http: Http | None = _optional(None, "A URL to GET, or a request.")
    agent: Agent | None = _optional(None, "A call of a language model.")
    ask: Ask | None = _optional(None, "A question to a person, or more about it.")
    set: dict[str, Any] | None = _optional(None, "Values, seen as this step's output.")
    wait: Wait | None = _optional(None, "How long to pause, or until when.")
    workflow: SubWorkflow | None = _optional(None, "The path of another workflow file, run as one step.")
    parallel: Parallel | None = _optional(None, "Steps that run together.")
    while_loop: WhileLoop | None = _optional(None, "Steps that are repeated as long as a condition holds.")
    file: File | None = _optional(None, "A text file that is created, edited or read.")
    json_state: JsonState | None = _optional(None, "A JSON file that is read, written or merged into.")
    sql: Sql | None = _optional(None, "SQL on SQLite or PostgreSQL.")
    checkpoint: CheckpointFile | None = _optional(None, "Save the state into a checkpoint file, or read one.")
    end: End | None = _optional(None, "The end of the run.")
    with_: dict[str, Any] = _optional({}, "Arguments of python, inputs of workflow.", alias="with")
    when: str | None = _optional(None, "An expression; if it is false the step is skipped.")
    after: Afters = _optional(
        [], "The steps it waits for. With `after` anywhere in the file nothing follows by order alone."
    )
    routes: list[Route] | None = _optional(
        None, "The ways on, in order: the first that holds is taken.", min_length=1
    )
    for_each: ForEach | None = _optional(None, "Run the step once for every item.")
    retry: Retry | None = _optional(None, "Retry policy.")
    timeout: Timeout | None = _optional(None, "How long one attempt may take.")
    circuit_breaker: CircuitBreaker | None = _optional(
        None, "When it is left alone because it keeps failing."
    )
    executor: str | None = _optional(
        None,
        "Where a python step runs: threads, processes, processes:4, or dask:ADDRESS; else here.",
        json_schema_extra={"pattern": r"^(threads|processes(:[1-9][0-9]{0,3})?|dask:.+)$"},
    )
    if_interrupted: Literal["rerun", "skip", "ask", "fail"] | None = _optional(
        None, "What a resume does if the step was running when the process died."
    )
    idempotent: bool = _optional(True, "If false, an interrupted step is not repeated unasked.")
    on_error: Literal["fail", "continue"] = _optional(
        "fail", "`continue` records the failure and goes on; steps that need it are skipped."
    )
    interrupt: Literal["before", "after"] | None = _optional(None, "Pause the run before or after the step.")

    @property
    def kind(self) -> str:
        """Which of `KINDS` it is."""
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def members(self) -> list[Step]:
        """The steps inside a parallel step or a loop; none for any other step."""
        around = self.parallel or self.while_loop
        return around.steps if around is not None else []


class Definition(Part):
    """A whole workflow file."""

    workflow: WorkflowSettings = Field(description="What holds for the whole workflow.")
    steps: list[Step] = Field(min_length=1, description="What is done.")
    output: dict[str, Any] | str | None = _optional(None, "What the run results in; templates.")


Parallel.model_rebuild()
WhileLoop.model_rebuild()
Step.model_rebuild()
Definition.model_rebuild()


DIALECT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, Any]


def json_schema() -> _Schema:
    """Return the JSON Schema (2020-12) of a workflow file. Optional fields are left out, never null."""
    schema = Definition.model_json_schema(by_alias=True)
    parts = schema.pop("$defs")
    short = {part.__name__: part.short for part in Part.__subclasses__() if part.short}
    forms = {name: parts[name]["properties"][field] for name, field in short.items()}
    after = parts["Step"]["properties"]["after"]
    several = {"type": after.pop("type"), "items": after["items"]}
    after["anyOf"] = [after.pop("items"), several]
    return {
        "$schema": DIALECT,
        "title": "Holdfast workflow",
        **{key: value for key, value in _cleaned(schema, forms).items() if key != "title"},
        "$defs": {name: _cleaned(part, forms) for name, part in parts.items()},
    }


def _cleaned(part: _Schema, forms: _Schema) -> _Schema:
    """Return a part's schema with short forms, without the titles that fields get by themselves."""
    fields = {name: _field(field, forms) for name, field in part.get("properties", {}).items()}
    return {**part, "properties": fields}


def _field(field: _Schema, forms: _Schema) -> _Schema:
    """Return a field's schema without its title and the null that stands for leaving it out, with the short form."""
    cleaned = {key: value for key, value in field.items() if key not in ("title", "anyOf", "$ref")}
    if cleaned.get("default", ...) is None or "$ref" in field:
        cleaned.pop("default", None)
    if isinstance(cleaned.get("items"), dict):
        cleaned["items"] = _field(cleaned["items"], forms)
    options = [option for option in field.get("anyOf", ()) if option != {"type": "null"}]
    options += [{"$ref": field["$ref"]}] if "$ref" in field else []
    long = [option["$ref"].rpartition("/")[2] for option in options if "$ref" in option]
    options = [_plain(forms[name]) for name in long if name in forms] + options
    options = [option if "$ref" in option else _field(option, forms) for option in options]
    if len(options) == 1:
        return {**options[0], **cleaned}
    return {**cleaned, "anyOf": options} if options else cleaned


def _plain(field: _Schema) -> _Schema:
    return {key: value for key, value in field.items() if key not in ("description", "default")}
