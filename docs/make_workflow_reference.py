"""Writes docs/reference/workflow.md from the format's JSON Schema; `--check` only compares."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.workflows.model import KINDS, json_schema

PAGE = Path(__file__).parent / "reference" / "workflow.md"
ORDER = (
    "WorkflowSettings",
    "Input", "StateKey", "Import", "AgentContext", "Checkpoint", "Retention", "Limits", "Hooks",
    "Step", "Route", "After", "ForEach", "Retry",
    "Shell", "Http", "Agent", "Price", "Ask", "Question", "Wait", "SubWorkflow", "Parallel",
    "WhileLoop", "File", "Change", "JsonState", "Sql", "Query", "CheckpointFile", "End",
)  # fmt: skip
HEAD = """# Workflow files

A workflow file is YAML: settings of the `workflow`, a list of `steps`, and the `output` of the run. This page is
generated from the models: change those, then run `python docs/make_workflow_reference.py`.

```yaml
workflow:
  name: report
  inputs:
    topic: {type: string, required: true}
steps:
  - name: search
    http: "https://example.org/search?q={{ inputs.topic }}"
    retry: {attempts: 3}
    routes:
      - {to: write, when: output.count > 0}
      - {to: ask-person}
  - name: ask-person
    ask: {prompt: "Nothing found on {{ inputs.topic }}. Continue?", choices: [continue, stop]}
    routes:
      - {to: write, when: answer == 'continue'}
      - {to: $end}
  - name: write
    shell: {run: "./write-report {{ inputs.topic }}", programs: [./write-report]}
output:
  report: "{{ steps.write.output }}"
```

All problems of a file are reported at once, with line, column and remedy. `holdfast workflow schema`
prints the JSON Schema of the format, for editors.

## YAML, strictly

Scalars are those of YAML 1.2: `on`, `yes`, `NO`, `12:30`, `1_000` and dates are text, and so are numbers
with a leading zero. These are refused: duplicate keys, keys that are not text, tags other than `!file`,
merge keys (`<<`), tabs for indentation, several documents in a file, `.inf` and `.nan`, files above 1 MB,
nesting above 50 levels, and aliases that expand to more than 100,000 values.

- `!file path` is replaced by the text of another file, or by its data if its name ends in `.yaml`, `.yml`
  or `.json`. The file must be in the workflow file's folder or below; paths are relative to the file that
  names it, and no symbolic link is followed.
- `${NAME}` is replaced by an environment variable, `${NAME:-default}` by the default if the variable is not set,
  and `$${` by the two characters `${`. Alone and without quotes it may become a number, true or false. In shell
  commands and hooks `${NAME}` belongs to the shell, and the text of an included file is not changed.
  `${workflow.name}` in `checkpoint.path` is the workflow's name.

## Order of steps

- In a file without any `after`, the run starts with the first step of the list (or `entry`), and each step is
  followed by the next in the list; the last one ends the run. `routes` replace that: the first route whose `when`
  is true is taken. If none is true the run fails, so end the list with a route without `when`. `$end` ends the run.
- In a file with any `after`, the order in the file does not matter. Steps without `after` that no route leads to
  start at once; every other step starts when all its predecessors are done. If no route of a step is true, the
  steps that wait for it still run.

Unreachable steps, routes that are never taken, steps that wait for each other, and loops without an exit are
refused.

## What expressions and templates see

`when` and `for_each.key` are expressions. The texts of a step, `set`, `with`, prompts, `for_each.in`,
`end.reason` and `output` are templates: `{{ … }}` is replaced by a value, and a text that consists of one
template keeps the type of the value.

| Name | What it is | Where |
| --- | --- | --- |
| `inputs` | the run's inputs | everywhere |
| `steps.NAME` | a step's `status`, `output`, `error` and what its kind adds | everywhere |
| `visits.NAME` | how often a step has finished: at its first visit 0 in its templates, 1 in its routes | everywhere |
| `vars` | the constants of `workflow.vars` and of imported files | everywhere |
| `metadata` | `workflow.metadata` | everywhere |
| `state` | the values of `workflow.state_schema` | everywhere |
| `workflow` | `name` and `run_id` | everywhere |
| `output`, `status`, `error` | of the step that has just finished | its routes |
| `answer` | the answer | routes of an `ask` step |
| `item` (or the name after `as`), `index`, `key` | the current item | steps with `for_each` |
| `iteration` | how many iterations are done | the condition of a `while_loop` |
| `secrets.NAME` | a secret of the environment | `with` of python steps, shell, http, agent and sql steps |
| `checkpoint` | `dir`, the folder of checkpoint files, and `last`, the newest of the run, or null | everywhere |
| `tmp` | the path of the run's temporary folder | what steps do |

A dot reads a field and never a Python attribute; write `steps['my-step']` for names with a dash.
"""


def kind_of(field: dict[str, Any]) -> str:
    """Return a field's type as text."""
    if "anyOf" in field and "such as 30s" in field.get("description", ""):
        return "duration"
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(kind_of(option) for option in field["anyOf"]))
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in field:
        return ", ".join(f"`{word}`" for word in field["enum"])
    if field.get("type") == "array":
        return f"list of {kind_of(field.get('items', {}))}"
    if field.get("type") == "object":
        values = field.get("additionalProperties")
        return f"fields of {kind_of(values)}" if isinstance(values, dict) and values else "fields"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false"}
    return words.get(field.get("type", ""), "anything")


def default_of(name: str, field: dict[str, Any], part: dict[str, Any]) -> str:
    if name in part.get("required", ()):
        return "required"
    if field.get("default", "") in ("", [], {}):
        return ""
    return f"`{json.dumps(field['default'])}`".replace('"', "")


def is_duration(field: dict[str, Any]) -> bool:
    return any("(ms|s|m|h|d|w)" in option.get("pattern", "") for option in field.get("anyOf", ()))


def table(part: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of a part, one row each."""
    yield "| Field | Type | Default | |"
    yield "| --- | --- | --- | --- |"
    for name, field in part["properties"].items():
        kind = "duration" if is_duration(field) else kind_of(field)
        if name in KINDS and "oneOf" in part:
            kind += " (kind)"
        text = field.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {kind} | {default_of(name, field, part)} | {text} |"


def page() -> str:
    """Return the whole page."""
    schema = json_schema()
    parts = schema["$defs"]
    lines = [HEAD, "## The file", "", *table(schema), ""]
    for name in [*ORDER, *sorted(parts.keys() - set(ORDER))]:
        lines += [f"## {name}", "", parts[name].get("description", ""), "", *table(parts[name]), ""]
    lines += ["A duration is a number of seconds, or text such as `30s`, `5m`, `1h30m`, `2d`."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if something is not up to date"
    )
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        remedy = "run: python docs/make_workflow_reference.py"
        raise SystemExit(f"docs/reference/{PAGE.name} is not up to date; {remedy}")


if __name__ == "__main__":
    main()
