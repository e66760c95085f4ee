"""The format of workflow files as frozen models, which give parsing, checks, JSON Schema and reference page."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from holdfast.workflows.settings import (
    ContextMode,
    Duration,
    OnError,
    Part,
    Price,
    StepName,
    Timeout,
    ValueType,
    WorkflowSettings,
    optional,
)

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


class Route(Part):
    """One way on from a step. The first whose condition holds is taken; without one it always holds."""

    to: str = Field(description="The step that follows, or $end.")
    when: str | None = optional(None, "An expression; without one the route is always taken.")


class After(Part):
    """A step that another one waits for."""

    short = "step"

    step: StepName = Field(description="Its name.")
    required: bool = optional(True, "If false, the step runs even if this one failed or was skipped.")


Afters = Annotated[
    list[After],
    BeforeValidator(lambda value: value if isinstance(value, list) else [] if value is None else [value]),
]


class Retry(Part):
    """Retry policy of a step."""

    attempts: int = optional(3, "How often it is tried, the first time included.", ge=1, le=100)
    backoff: Literal["exponential", "fixed"] = optional(
        "exponential", "Whether the delay doubles from try to try."
    )
    delay: Duration = optional(2.0, "How long to wait before the second try.")
    max_delay: Duration = optional(
        60.0, "The longest wait between two tries, whatever a server asks for with Retry-After."
    )
    on: Literal["any", "transient", "timeout"] | None = optional(
        None, "Which failures are worth it: by default transient ones for http and agent, any for others."
    )


class CircuitBreaker(Part):
    """When a step that keeps failing is left alone for a while, in all runs of one process."""

    failures: int = optional(5, "After how many failed tries in a row it fails at once.", ge=1, le=1000)
    reset: Timeout = optional(30.0, "For how long; then one try is let through.")


class ForEach(Part):
    """Run the step once for every item of a list, or of a dict's values."""

    in_: str | list[Any] | dict[str, Any] = Field(
        alias="in", description="A list, fields, or one template that gives them."
    )
    as_: str = optional(
        "item", "The name that the item has in templates.", alias="as", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"
    )
    key: str | None = optional(None, "An expression that names the item; by default its index or key.")
    max_parallel: int = optional(10, "How many items are worked on at once.", ge=1, le=1000)
    mode: Literal["parallel", "sequential"] = optional("parallel", "At once, or one after the other.")
    on_error: OnError = optional(
        "fail_fast", "Stop at the first failure, go on with the others, or fail unless all succeed."
    )


class Shell(Part):
    """A command, run by a shell. Values are handed over as variables, never as code."""

    short = "run"
    templates = ("run", "cwd", "env", "stdin")

    run: str = Field(description="The command or script; a template.")
    cwd: str | None = optional(None, "The folder it runs in, relative to the workflow file.")
    env: dict[str, str] = optional({}, "Variables it is given beside those of the environment.")
    stdin: Any = optional(None, "Text, or data that is sent as JSON.")
    programs: list[str] = optional(
        [],
        "Programs, such as `./charge.sh` or `python3 report.py`, that may be given values in `run` "
        "because they do not run them as code.",
    )
    shell: Literal["sh", "bash"] = optional("sh", "Which shell runs it.")
    ok_codes: list[int] = optional([0], "The exit codes that are no failure.")
    output: Literal["auto", "text", "json", "lines"] = optional(
        "auto", "How its standard output is read: `auto` takes JSON if it is JSON."
    )


class Http(Part):
    """A request over HTTP."""

    short = "url"
    templates = ("url", "headers", "query", "json", "body")

    url: str = Field(description="The address; a template.")
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] | None = optional(
        None, "By default GET, or POST with a json or body."
    )
    headers: dict[str, str] = optional({}, "Header fields; templates.")
    query: dict[str, Any] = optional({}, "What is added to the address after `?`.")
    json_: Any = optional(None, "Data to send as JSON.", alias="json")
    body: str | None = optional(None, "The text to send.")
    ok_status: list[int] = optional([], "By default every 2xx.")
    output: Literal["auto", "text", "json"] = optional(
        "auto", "How the reply is read: `auto` goes by its content type."
    )
    max_bytes: int = optional(
        10_000_000, "A longer reply, before or after it is decoded, is a failure.", ge=1, le=1_000_000_000
    )

    @model_validator(mode="after")
    def _sends_one_thing(self) -> Http:
        if self.json_ is not None and self.body is not None:
            raise ValueError("a request has either json or a body")
        return self


class Agent(Part):
    """A call of a language model."""

    templates = ("model", "prompt", "system", "base_url", "api_key")

    model: str = optional(
        "", "Whose model and which, as provider:name; by default that of `workflow.runtime`."
    )
    prompt: str = Field(description="What it is asked; a template.")
    system: str = optional("", "How it is to behave; a template.")
    output: dict[str, Any] | None = optional(
        None,
        "A JSON Schema that the reply must fit. Patterns cannot look around or refer back: they are "
        "matched in time that is proportional to the text.",
    )
    tools: list[str] = optional([], "Python functions it may call, as module:function or file.py:function.")
    temperature: float | None = optional(None, "How freely it words its reply.", ge=0, le=2)
    max_tokens: int | None = optional(None, "The longest reply.", ge=1)
    base_url: str | None = optional(None, "The address of a server that speaks the provider's protocol.")
    api_key: str | None = optional(None, "A secret: {{ secrets.NAME }}.")
    price: Price | None = optional(None, "What it costs, if that is not known.")
    context: ContextMode | None = optional(
        None, "What it is sent beside its prompt; by default as the workflow says."
    )
    max_turns: int = optional(20, "How often it may be called in one step, tools included.", ge=1, le=200)


class Choice(Part):
    """One of the answers that a question takes."""

    short = "value"

    value: Any = Field(description="What the answer is.")
    label: str = optional("", "What is shown for it.")
    description: str = optional("", "What it means.")


class Question(Part):
    """One of several questions."""

    templates = ("prompt",)

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", description="Its name among the answers.")
    prompt: str = Field(description="What is asked; a template.")
    choices: list[Choice] | None = optional(None, "The answers it takes.", min_length=1)
    type: ValueType = optional("any", "Of which type the answer is.")
    default: Any = optional(None, "The answer if nobody gives one in time, or with --skip-gates.")
    multiline: bool = optional(False, "Whether the answer may have several lines.")


class Ask(Part):
    """A question to a person, or several."""

    short = "prompt"
    templates = ("prompt",)
    either = ("prompt", "questions", "an ask needs either a prompt or questions")

    prompt: str = optional("", "What is asked; a template.")
    choices: list[Choice] | None = optional(None, "Values, or {value, label, description}.", min_length=1)
    type: ValueType = optional("any", "Of which type the answer is.")
    questions: list[Question] = optional([], "Several questions instead of one.")
    timeout: Timeout | None = optional(
        None, "How long it takes an answer; then the default is taken, or the step fails."
    )
    default: Any = optional(None, "The answer if nobody gives one in time, or with --skip-gates.")
    multiline: bool = optional(False, "Whether the answer may have several lines.")


class Wait(Part):
    """A pause in time."""

    short = "for"
    templates = ("until",)
    either = ("seconds", "until", "a wait needs either `for` or `until`")

    seconds: Duration | None = optional(None, "How long.", alias="for")
    until: str | None = optional(None, "An ISO 8601 date and time, with its offset or in UTC.")


class SubWorkflow(Part):
    """Another workflow file, run as one step."""

    short = "file"

    file: str = Field(description="Its path, relative to this file.")


class Parallel(Part):
    """Steps that run together."""

    short = "steps"

    steps: list[Step] = Field(min_length=1, description="The members.")
    on_error: OnError = optional(
        "fail_fast", "Stop at the first failure, go on with the others, or fail unless all succeed."
    )


class WhileLoop(Part):
    """Steps that run one after the other, again and again, as long as a condition holds."""

    condition: str = Field(description="An expression; it is evaluated before every iteration.")
    steps: list[Step] = Field(min_length=1, description="What is done in each iteration, in this order.")
    max_iterations: int = optional(100, "The most iterations.", ge=1, le=100_000)
    on_limit: Literal["fail", "stop", "ask"] = optional(
        "fail",
        "What happens if the condition still holds then: the step fails, the loop ends, or a person is asked for more.",
    )


class Change(Part):
    """One change of a file's text."""

    templates = ("replace", "with", "append")
    either = ("replace", "append", "a change needs either `replace` or `append`")

    replace: str | None = optional(None, "A text that is in the file, once unless `all` is true; a template.")
    with_: str = optional("", "The text in its place; a template.", alias="with")
    all: bool = optional(False, "Whether every occurrence is replaced.")
    append: str | None = optional(None, "A text to add at the end; a template.")


_OUTSIDE = "Whether the path may lead out of the folder of the workflow file."


class File(Part):
    """A text file that is created, edited or read. Files are written whole or not at all."""

    templates = ("create", "content", "edit", "read")
    either = ("create", "edit", "read", "a file step needs one of `create`, `edit` and `read`")

    create: str | None = optional(None, "The path of the file to write; a template.")
    content: Any = optional("", "Text, or data that is written as JSON.")
    overwrite: bool = optional(True, "If false, an existing file with other content is a failure.")
    edit: str | None = optional(None, "The path of the file to change; a template.")
    changes: list[Change] = optional([], "What is changed in it, in this order.")
    read: str | list[str] | None = optional(
        None, "A path, or a list of paths and patterns such as docs/*.md; templates."
    )
    output: Literal["text", "json", "lines"] = optional("text", "How what is read is understood.")
    max_bytes: int = optional(10_000_000, "More than this is not read or written.", ge=1, le=1_000_000_000)
    outside: bool = optional(False, _OUTSIDE)

    @model_validator(mode="after")
    def _edits_something(self) -> Self:
        if (self.edit is None) == bool(self.changes):
            raise ValueError("`edit` and `changes` belong together; give both or none")
        return self


class JsonState(Part):
    """Data that is kept in a JSON file beside the runs. Writers wait for each other."""

    templates = ("read", "write", "merge", "state")
    either = ("read", "write", "merge", "a json_state step needs one of `read`, `write` and `merge`")

    read: str | None = optional(None, "The path of the file to read; a template.")
    write: str | None = optional(None, "The path of the file to write; a template.")
    merge: str | None = optional(None, "The path of the file to merge into; a template.")
    state: Any = optional(
        None, "The data to write or to merge: fields are merged into fields, all else is replaced."
    )
    default: Any = optional(None, "What a read gives if there is no file; without it that is a failure.")
    max_bytes: int = optional(10_000_000, "More than this is not read or written.", ge=1, le=1_000_000_000)
    outside: bool = optional(False, _OUTSIDE)


class Query(Part):
    """One statement of several."""

    short = "query"
    templates = ("params",)

    query: str = Field(description="SQL, with :name where a parameter belongs; not a template.")
    params: dict[str, Any] = optional({}, "The parameters, by name; templates.")


class Sql(Part):
    """SQL in one transaction. Values are parameters, never a part of the SQL."""

    templates = ("url", "params")
    either = ("query", "queries", "a sql step needs either `query` or `queries`")

    url: str = Field(
        description="sqlite:///FILE, relative to the workflow file, or postgresql://USER@HOST/DATABASE; a template."
    )
    query: str = optional("", "SQL, with :name where a parameter belongs; not a template.")
    params: dict[str, Any] = optional({}, "The parameters of `query`, by name; templates.")
    queries: list[Query] = optional([], "Several statements instead of one.")
    max_rows: int = optional(1000, "More rows than this are a failure.", ge=1, le=100_000)
    max_bytes: int = optional(10_000_000, "More data than this is a failure.", ge=1, le=1_000_000_000)
    outside: bool = optional(False, "Whether a SQLite file may be outside the folder of the workflow file.")


class CheckpointFile(Part):
    """Save the state into a checkpoint file, or read one."""

    templates = ("save", "load")
    either = ("save", "load", "a checkpoint step needs either `save` or `load`")

    save: str | None = optional(
        None, "The path of the file to write, in place of a checkpoint file but of no other; a template."
    )
    load: str | None = optional(None, "The path of the file to read; a template.")
    outside: bool = optional(False, _OUTSIDE)


class End(Part):
    """The end of the run. Beside other branches a success ends its own branch only."""

    short = "status"
    templates = ("reason",)

    status: Literal["success", "failure"] = optional("success", "How the run ends.")
    reason: str = optional("", "Why; a template.")


class Step(Part):
    """One step: its name, what it does (exactly one kind), and what surrounds it."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        json_schema_extra={"oneOf": [{"required": [kind]} for kind in (*KINDS, "uses")]},
    )

    name: StepName = Field(description="Its name, once in the file, members of parallel steps included.")
    description: str = optional("", "What it is for.")
    python: str | None = optional(None, "module:function, or file.py:function beside the workflow file.")
    shell: Shell | None = optional(None, "A command, or more about one.")
    http: Http | None = optional(None, "A URL to GET, or a request.")
    agent: Agent | None = optional(None, "A call of a language model.")
    ask: Ask | None = optional(None, "A question to a person, or more about it.")
    set: dict[str, Any] | None = optional(None, "Values, seen as this step's output.")
    wait: Wait | None = optional(None, "How long to pause, or until when.")
    workflow: SubWorkflow | None = optional(None, "The path of another workflow file, run as one step.")
    parallel: Parallel | None = optional(None, "Steps that run together.")
    while_loop: WhileLoop | None = optional(None, "Steps that are repeated as long as a condition holds.")
    file: File | None = optional(None, "A text file that is created, edited or read.")
    json_state: JsonState | None = optional(None, "A JSON file that is read, written or merged into.")
    sql: Sql | None = optional(None, "SQL on SQLite or PostgreSQL.")
    checkpoint: CheckpointFile | None = optional(None, "Save the state into a checkpoint file, or read one.")
    end: End | None = optional(None, "The end of the run.")
    uses: str | None = optional(
        None, "An imported step whose fields this one has, beside its own, in place of a kind."
    )
    with_: dict[str, Any] = optional({}, "Arguments of python, inputs of workflow.", alias="with")
    when: str | None = optional(None, "An expression; if it is false the step is skipped.")
    after: Afters = optional(
        [], "The steps it waits for. With `after` anywhere in the file nothing follows by order alone."
    )
    routes: list[Route] | None = optional(
        None, "The ways on, in order: the first that holds is taken.", min_length=1
    )
    for_each: ForEach | None = optional(None, "Run the step once for every item.")
    retry: Retry | None = optional(None, "Retry policy.")
    timeout: Timeout | None = optional(None, "How long one attempt may take.")
    circuit_breaker: CircuitBreaker | None = optional(None, "When it is left alone because it keeps failing.")
    executor: str | None = optional(
        None,
        "Where a python step runs: threads, processes, processes:4, or dask:ADDRESS; else here.",
        json_schema_extra={"pattern": r"^(threads|processes(:[1-9][0-9]{0,3})?|dask:.+)$"},
    )
    if_interrupted: Literal["rerun", "skip", "ask", "fail"] | None = optional(
        None, "What a resume does if the step was running when the process died."
    )
    idempotent: bool = optional(True, "If false, an interrupted step is not repeated unasked.")
    on_error: Literal["fail", "continue"] = optional(
        "fail", "`continue` records the failure and goes on; steps that need it are skipped."
    )
    interrupt: Literal["before", "after"] | None = optional(None, "Pause the run before or after the step.")

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
    output: dict[str, Any] | str | None = optional(None, "What the run results in; templates.")


def with_runtime(definition: Definition) -> Definition:
    """Return the definition with `workflow.runtime` in its agent steps, where they say nothing themselves."""
    runtime = definition.workflow.runtime
    given = {name: getattr(runtime, name) for name in runtime.model_fields_set}
    given = {name: value for name, value in given.items() if value is not None}
    return definition.model_copy(update={"steps": _with_runtime(definition.steps, given)})


def _with_runtime(steps: list[Step], given: dict[str, Any]) -> list[Step]:
    return [_step_with_runtime(step, given) for step in steps] if given else steps


def _step_with_runtime(step: Step, given: dict[str, Any]) -> Step:
    if step.agent is None:
        around = step.parallel or step.while_loop
        if around is None:
            return step
        inner = around.model_copy(update={"steps": _with_runtime(around.steps, given)})
        return step.model_copy(update={step.kind: inner})
    known = Agent.model_fields.keys() - step.agent.model_fields_set
    agent = step.agent.model_copy(update={name: given[name] for name in known & given.keys()})
    timeout = step.timeout if "timeout" in step.model_fields_set else given.get("timeout")
    return step.model_copy(update={"agent": agent, "timeout": timeout})


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
