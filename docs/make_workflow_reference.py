"""Writes docs/reference/workflow.md from the format's JSON Schema; `--check` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.workflows.json_schema import json_schema
from holdfast.workflows.model import KINDS

PAGE = Path(__file__).parent / "reference" / "workflow.md"
ORDER = (
    "WorkflowSettings",
    "Input", "Checkpoint", "Retention", "Limits", "Hooks", "Step", "Route", "After", "ForEach", "Retry",
    "Shell", "Http", "Agent", "Price", "Ask", "Question", "Wait", "SubWorkflow", "Parallel", "CheckpointFile", "End",
)  # fmt: skip
HEAD = """# Workflow files

A workflow file is YAML: what holds for the whole `workflow`, a list of `steps`, and what the run results
in. This page is written by `docs/make_workflow_reference.py` from the models; change those, then run
`python docs/make_workflow_reference.py`.

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
    ask: {prompt: "Nothing found on {{ inputs.topic }}. Go on?", choices: [go on, stop]}
    routes:
      - {to: write, when: answer == 'go on'}
      - {to: $end}
  - name: write
    shell: {run: "./write-report {{ inputs.topic }}", programs: [./write-report]}
output:
  report: "{{ steps.write.output }}"
```

Every problem of a file is reported at once, with its line and column and a cure. `holdfast workflow schema`
prints the JSON Schema of the format, for editors.

## YAML, strictly

Scalars are those of YAML 1.2: `on`, `yes`, `NO`, `12:30`, `1_000` and dates are text, and so are numbers
with a leading zero. Refused are keys that are given twice or are not text, tags other than `!file`,
merge keys (`<<`), tabs to indent, several documents in a file, `.inf` and `.nan`, files above 1 MB,
nesting above 50 levels, and aliases that write out to more than 100,000 values.

- `!file path` stands for the text of another file, or for its data if its name ends in `.yaml`, `.yml`
  or `.json`. The file is in the workflow file's folder or below; paths are relative to the file that
  names it, and no symbolic link is followed.
- `${NAME}` is a variable of the environment, `${NAME:-default}` one that need not be set, and `$${` the
  two characters themselves. Without quotes and alone it may stand for a number, true or false. In shell
  commands and hooks `${NAME}` belongs to the shell, and the text of an included file is left as it is.
  `${workflow.name}` in `checkpoint.path` is the workflow's name.

## How steps follow each other

- In a file without any `after` the first step of the list (or `entry`) begins, and each step is followed
  by the next in the list; the last one ends the run. `routes` replace that: the first route whose `when`
  holds is taken. If none holds the run fails, so end the list with a route without `when`. `$end` ends
  the run.
- In a file with an `after` anywhere nothing follows by order alone. Steps that wait for no other and
  that no route leads to begin at once; a step begins when all that it waits for are done. If no route of
  a step holds, the steps that wait for it go on.

Refused are steps that are never reached, routes that are never taken, steps that wait for each other,
and circles that no way leads out of.

## What expressions and templates see

`when` and `for_each.key` are expressions. Texts of what a step does, `set`, `with`, prompts,
`for_each.in`, `end.reason` and `output` are templates: `{{ … }}` stands for a value, and a text that is
nothing but one template is that value itself.

| Name | What it is | Where |
| --- | --- | --- |
| `inputs` | the run's inputs | everywhere |
| `steps.NAME` | a step's `status`, `output`, `error` and what its kind adds | everywhere |
| `visits.NAME` | how often a step has finished: at its first visit 0 in its templates, 1 in its routes | everywhere |
| `vars` | the constants of `workflow.vars` | everywhere |
| `workflow` | `name` and `run_id` | everywhere |
| `output`, `status`, `error` | of the step that has just finished | its routes |
| `answer` | the answer | routes of an `ask` step |
| `item` (or the name after `as`), `index`, `key` | the item at hand | steps with `for_each` |
| `secrets.NAME` | a secret of the environment | `with` of python steps, shell, http and agent steps |

A dot is a look into fields and never anything of Python; `steps['my-step']` is for names with a dash.
"""


def kind_of(field: dict[str, Any]) -> str:
    """A field's type in words."""
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
    """The fields of a part, one a line."""
    yield "| Field | Type | Default | |"
    yield "| --- | --- | --- | --- |"
    for name, field in part["properties"].items():
        kind = "duration" if is_duration(field) else kind_of(field)
        if name in KINDS and "oneOf" in part:
            kind += " (kind)"
        text = field.get("description", "").replace("|", "\\|")
        yield f"| `{name}` | {kind} | {default_of(name, field, part)} | {text} |"


def page() -> str:
    """The whole page."""
    schema = json_schema()
    parts = schema["$defs"]
    lines = [HEAD, "## The file", "", *table(schema), ""]
    for name in [*ORDER, *sorted(parts.keys() - set(ORDER))]:
        lines += [f"## {name}", "", parts[name].get("description", ""), "", *table(parts[name]), ""]
    lines += ["A duration is a number of seconds, or text such as `30s`, `5m`, `1h30m`, `2d`."]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        told = "run: python docs/make_workflow_reference.py"
        raise SystemExit(f"docs/reference/{PAGE.name} is not up to date; {told}")


if __name__ == "__main__":
    main()
