"""The settings of a workflow file as frozen models, and the parts that all models are made of."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

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


def optional(default: Any, description: str, **rules: Any) -> Any:
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

    type: ValueType = optional("string", "Of which type its values are.")
    required: bool = optional(False, "Refuse to run without it. An input with a default is not missed.")
    default: Any = optional(None, "What it is if it is not given.")
    description: str = optional("", "What it is for; shown when it is missing.")
    choices: list[Any] | None = optional(None, "The values it may have.", min_length=1)


class Retention(Part):
    """How long runs and their checkpoints are kept."""

    max_checkpoints: int | None = optional(10, "How many are kept, oldest dropped first.", ge=1)
    per: Literal["run", "workflow"] = optional(
        "run", "Whether `max_checkpoints` counts in each run, or over all runs of the workflow."
    )
    max_age_days: float | None = optional(7, "Older ones are dropped.", gt=0)
    keep_successful: bool = optional(True, "The last successful run outlives both limits.")
    pause_ttl: Duration | None = optional(
        None,
        "How long a question takes an answer; then it has expired.",
    )


class Checkpoint(Part):
    """What is saved, where, and what a failure means."""

    enabled: bool = optional(True, "If false, a run is saved only when it pauses, fails, is stopped or ends.")
    storage: Literal["sqlite", "files", "memory", "postgres"] = optional(
        "sqlite",
        "One SQLite file, a folder per run, nothing that outlives the process, or a PostgreSQL server.",
    )
    path: str = optional(".holdfast/", "A folder; ${workflow.name} is the workflow's name.")
    url: str | None = optional(
        None,
        "With `storage: postgres`: the server, without a password. By default what libpq finds in the environment "
        "(PGHOST, PGDATABASE …). HOLDFAST_STORE and WORKFLOW_CHECKPOINT_DSN come first.",
    )
    dir: str | None = optional(
        None,
        "The folder of checkpoint files, in the folder of the workflow file, seen as checkpoint.dir: whenever a run "
        "pauses before or after a step, one is written there.",
    )
    on_failure: Literal["pause", "continue", "rollback"] = optional(
        "pause", "Keep the run to be resumed, go on without the step, or go back to where the run began."
    )
    on_save_error: Literal["fail", "continue"] = optional(
        "continue", "What happens if a checkpoint cannot be saved."
    )
    durability: Literal["full", "process", "exit"] = optional(
        "full",
        "What a saved step survives: a power cut (full) or a killed process (process); "
        "`exit` saves only at a pause, a failure or the end.",
    )
    interval: int = optional(1, "Save every so many waves of steps.", ge=0)
    preserve: Literal["last", "all", "none"] = optional(
        "last",
        "What a completed run leaves: all of it, which only `last` leaves to retention, or `none` of it.",
    )
    retention: Retention | None = optional(
        Retention(), "How long runs and checkpoints are kept; `null` keeps them for ever."
    )


class Limits(Part):
    """What a run may use."""

    max_iterations: int | None = optional(
        None,
        "Waves of steps, over all resumes. By default 100, and ten for each step of a longer file.",
        ge=1,
        le=1_000_000,
    )
    timeout: Timeout | None = optional(None, "Working time of one execution; a resume starts at zero.")
    budget: float | None = optional(None, "US dollars for agents, over all resumes.", ge=0)
    budget_mode: Literal["enforce", "audit"] = optional(
        "enforce", "Stop when the budget is spent, or only tell."
    )
    on_limit: Literal["fail", "ask"] = optional(
        "fail",
        "What a run does that has used up its iterations or its budget: fail, or pause and ask for more.",
    )
    max_parallel: int = optional(16, "How many steps run at once.", ge=1, le=1000)


class Hooks(Part):
    """Shell commands that run when a run starts, completes or fails; they change nothing in it."""

    on_start: str | None = optional(None, "Run when a run begins.")
    on_complete: str | None = optional(None, "Run when a run has completed.")
    on_error: str | None = optional(None, "Run when a run has failed.")


ContextMode = Literal["explicit", "accumulate", "last_only"]


class AgentContext(Part):
    """What agents are sent beside their prompts."""

    short = "mode"

    mode: ContextMode = optional(
        "explicit",
        "Nothing but what the prompt names (explicit), the inputs and all outputs so far (accumulate), or the "
        "inputs and the output of the step before (last_only).",
    )
    max_characters: int = optional(
        100_000, "More than this is not sent: the oldest outputs are left out.", ge=1, le=10_000_000
    )


class Price(Part):
    """US dollars per million tokens."""

    input: float = Field(ge=0, description="For what is sent.")
    output: float = Field(ge=0, description="For what comes back.")


class Runtime(Part):
    """Settings of every agent step of the file that says nothing else itself."""

    templates = ("model", "base_url", "api_key")

    model: str | None = optional(None, "Whose model and which, as provider:name.")
    temperature: float | None = optional(None, "How freely it words its reply.", ge=0, le=2)
    max_tokens: int | None = optional(None, "The longest reply.", ge=1)
    max_turns: int = optional(20, "How often it may be called in one step, tools included.", ge=1, le=200)
    base_url: str | None = optional(None, "The address of a server that speaks the provider's protocol.")
    api_key: str | None = optional(None, "A secret: {{ secrets.NAME }}.")
    price: Price | None = optional(None, "What it costs, if that is not known.")
    timeout: Timeout | None = optional(None, "How long one attempt may take.")


class Import(Part):
    """A YAML file with `vars` and `steps` for several workflow files."""

    short = "file"

    file: str = Field(description="Its path, in the folder of the workflow file or below.")
    as_: str = optional(
        "",
        "What its names begin with: vars.LIB.NAME, and `uses: LIB.NAME`.",
        alias="as",
        pattern=r"^[A-Za-z_]\w*$|^$",
    )


class StateKey(Part):
    """A value that steps share: a step whose output has a field of that name sets it."""

    short = "type"

    type: ValueType = optional("any", "Of which type its values are; another one is a failure of the step.")
    default: Any = optional(None, "What it is at first; else the input of that name.")
    reducer: Literal["replace", "append", "merge", "add"] = optional(
        "replace", "How a new value meets the old one. All but `replace` begin with nothing: [], {} or 0."
    )

    @property
    def value_type(self) -> str:
        """The type of the values that steps give."""
        by_reducer = {"append": "array", "merge": "object", "add": "number"}
        return self.type if self.type != "any" else by_reducer.get(self.reducer, "any")

    @model_validator(mode="after")
    def _begins_once(self) -> Self:
        if self.reducer != "replace" and self.default is not None:
            raise ValueError(
                f"a value with the reducer {self.reducer} has no default; leave one of the two out"
            )
        return self


class WorkflowSettings(Part):
    """What holds for the whole workflow."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_. -]{0,99}$", description="Its name; runs are kept under it."
    )
    description: str = optional("", "What it is for.")
    version: str | int | float | None = optional(None, "Yours to choose; it is kept with every run.")
    tags: list[str] = optional([], "Words to find its runs by.")
    entry: StepName | None = optional(None, "The first step; by default the first in the list.")
    inputs: dict[str, Input] = optional({}, "What a run is given, by name.")
    vars: dict[str, Any] = optional({}, "Constants, seen as vars.NAME.")
    imports: list[Import] = optional([], "Files with `vars` and `steps` that this file uses.")
    state_schema: dict[str, StateKey] = optional({}, "Values that steps share, seen as state.NAME.")
    instructions: str = optional("", "Text before the `system` text of every agent; a template.")
    context: AgentContext = optional(AgentContext(), "What its agents are sent, unless they say otherwise.")
    runtime: Runtime = optional(Runtime(), "Settings of its agents, unless they say otherwise.")
    checkpoint: Checkpoint = optional(Checkpoint(), "How its runs are saved.")
    limits: Limits = optional(Limits(), "What its runs may use.")
    hooks: Hooks = optional(Hooks(), "Commands that run when a run starts, completes or fails.")
    interrupt_before: list[StepName] = optional([], "Steps before which a run pauses.")
    interrupt_after: list[StepName] = optional([], "Steps after which a run pauses.")
    on_change: Literal["warn", "fail", "use_saved"] = optional(
        "warn", "What a resume does if the file has changed since the run began."
    )
    metadata: dict[str, Any] = optional(
        {}, "Anything else, seen as metadata.NAME; it is kept with every run."
    )
