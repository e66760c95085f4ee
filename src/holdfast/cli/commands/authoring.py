"""`holdfast init`, `validate` and `workflow`: for people who write workflow files."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import click

from holdfast.cli.display.tables import print_json
from holdfast.cli.display.text import count, one_line, visible
from holdfast.cli.errors import COMPLETED, INVALID
from holdfast.cli.reading import json_option, reading
from holdfast.cli.store_option import store_option
from holdfast.workflows.model import Agent, Definition, Step

DRAWINGS = ("mermaid", "dot")
TEMPLATES = ("chain", "loop", "dag", "for-each", "gate")


@click.command()
@click.argument("flows", metavar="WORKFLOW...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--strict", is_flag=True, help="Take warnings for problems.")
@json_option
def validate(flows: tuple[Path, ...], strict: bool, as_json: bool) -> int:
    """Check workflow files and tell every problem of every file, with its place and the way out.

    The exit code is 2 if there is a problem. Nothing is run, but modules that python steps name are imported.

    \b
    Example:
      holdfast validate flows/*.yaml --strict
    """
    reports = [_checked(path) for path in flows]
    bad = [report for report in reports if report["problems"] or (strict and report["warnings"])]
    if as_json:
        print_json({"valid": not bad, "files": reports})
    else:
        for report in reports:
            _print_report(report)
    return INVALID if bad else COMPLETED


def _checked(path: Path) -> dict[str, Any]:
    from holdfast.workflows.reading.problems import WorkflowInvalid
    from holdfast.workflows.workflow import load_workflow

    report: dict[str, Any] = {"file": str(path), "workflow": None, "steps": 0, "problems": [], "warnings": []}
    try:
        flow = load_workflow(path)
        report |= {"workflow": flow.name, "steps": len(flow.definition.steps)}
        flow.open("memory://").store.close()
    except WorkflowInvalid as error:
        report["problems"] = [_problem(problem) for problem in error.problems]
        return report
    report["warnings"] = warnings_of(flow.definition, path.read_text("utf-8"))
    return report


def _problem(problem: Any) -> dict[str, Any]:
    file, line, column = problem.position
    place = {"file": file, "line": line, "column": column}
    return {**place, "message": problem.message, "hint": problem.hint, "text": str(problem)}


def _print_report(report: dict[str, Any]) -> None:
    for problem in report["problems"]:
        click.echo(problem["text"].replace(report["file"], one_line(report["file"], 2_000)))
    for warning in report["warnings"]:
        click.echo(one_line(f"{report['file']}: warning: {warning}", 2_000))
    if report["problems"]:
        click.echo(one_line(f"{report['file']}: {count(len(report['problems']), 'problem')}", 2_000))
    else:
        click.echo(one_line(f"{report['file']}: valid, {count(report['steps'], 'step')}", 2_000))


@click.group()
def workflow() -> None:
    """Describe and draw the workflow of a file or a run; print the JSON Schema of workflow files.

    \b
    Example:
      holdfast workflow inspect flow.yaml
      holdfast workflow draw flow.yaml > flow.mmd
    """


_TARGET = click.argument("target", metavar="FILE|RUN")


@workflow.command()
@_TARGET
@store_option
@json_option
def inspect(target: str, store: str | None, as_json: bool) -> int:
    """Describe the steps of a workflow file, or of the workflow of a stored run: layers, routes, what waits.

    RUN is a run's id or a workflow's name. A run is described as its journal has it, so its file and its code need not
    be there. Steps of one layer may run together. Layers are not waves, which `history` and RUN@N count: a loop or a
    for-each takes several.

    \b
    Example:
      holdfast workflow inspect flow.yaml
    """
    from holdfast.cli.display.outlines import outline_text

    outline, kinds = _outline(target, store)
    if as_json:
        print_json(_described(outline, kinds))
    else:
        click.echo(one_line(f"{outline['name']}: {count(len(outline['nodes']), 'step')}", 2_000))
        click.echo(visible(outline_text(outline, kinds)))
    return COMPLETED


@workflow.command()
@_TARGET
@click.option(
    "--format",
    "form",
    type=click.Choice(DRAWINGS),
    default="mermaid",
    show_default=True,
    help="The language.",
)
@store_option
def draw(target: str, form: str, store: str | None) -> int:
    """Draw a workflow file, or the workflow of a stored run, as Mermaid or for Graphviz.

    \b
    Example:
      holdfast workflow draw flow.yaml > flow.mmd
      holdfast workflow draw flow.yaml --format dot | dot -Tsvg > flow.svg
    """
    from holdfast.cli.display.outlines import dot
    from holdfast.graph.drawing import mermaid

    outline, _ = _outline(target, store)
    click.echo(dot(outline) if form == "dot" else mermaid(outline), nl=False)
    return COMPLETED


def _outline(target: str, store: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The outline of a workflow's steps and, for a file, the kind of each."""
    from holdfast.cli.display.outlines import folded
    from holdfast.cli.reading import view_of

    path = Path(target)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return _outline_of_file(path)
    view = view_of(reading(store), target)
    if not view.outline:
        raise click.BadParameter(f"run {view.run_id!r} has no graph: its state was saved by hand")
    return folded(view.outline, is_flow=view.flow is not None), {}


def _outline_of_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from holdfast.cli.display.outlines import folded, with_conditions
    from holdfast.workflows.scope import Layout
    from holdfast.workflows.workflow import load_workflow

    _refuse_capsule(path)
    flow = load_workflow(path)
    app = flow.open("memory://")
    app.store.close()
    steps = Layout(flow.definition).steps
    outline = with_conditions(folded(app.outline(), is_flow=True), _routes(steps))
    return outline, {name: _kind(step) for name, step in steps.items()}


def _refuse_capsule(path: Path) -> None:
    from holdfast.capsules.format import MAGIC

    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise click.UsageError(
                f"{path} is a capsule; look into it with: holdfast capsule import --inspect FILE"
            )


def _routes(steps: Mapping[str, Step]) -> dict[str, list[tuple[str, str]]]:
    return {
        name: [
            (route.to, route.when or ("otherwise" if len(step.routes) > 1 else "")) for route in step.routes
        ]
        for name, step in steps.items()
        if step.routes
    }


def _kind(step: Step) -> str:
    return f"{step.kind} for each" if step.for_each else step.kind


def _described(outline: Mapping[str, Any], kinds: dict[str, str]) -> dict[str, Any]:
    from holdfast.cli.display.outlines import places

    steps = [
        {
            "name": place.name,
            "kind": kinds.get(place.name),
            "layer": place.layer or None,
            "next": [way.as_json() for way in place.ways],
            "waits_for": place.waits_for,
            "steps": None if place.inner is None else _described(place.inner, kinds)["steps"],
        }
        for place in places(outline)
    ]
    return {"name": outline["name"], "steps": steps}


@workflow.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file."
)
def schema(output: Path | None) -> int:
    """Print the JSON Schema of workflow files, for editors that check while you type.

    \b
    Example:
      holdfast workflow schema -o .holdfast/workflow.schema.json
    """
    import json

    from holdfast.workflows.model import json_schema

    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return 0
    _write(output, text)
    click.echo(f"wrote {output}; for yaml-language-server put this first in a workflow file:")
    click.echo(f"# yaml-language-server: $schema={Path(os.path.relpath(output)).as_posix()}")
    return 0


@click.command()
@click.argument("file", default="workflow.yaml", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--template",
    type=click.Choice(TEMPLATES),
    default="chain",
    show_default=True,
    help="What it shows: steps one after the other, a loop, steps side by side, items of a list, a question.",
)
def init(file: Path, force: bool, template: str) -> int:
    """Write a first workflow file, with comments, that runs with no key and no network.

    FILE is workflow.yaml if it is not given.

    \b
    Example:
      holdfast init hello.yaml
      holdfast init review.yaml --template gate
    """
    if file.exists() and not force:
        raise click.UsageError(f"{file} is there already; --force writes over it")
    text = (resources.files("holdfast.cli") / "starter" / f"{template}.yaml").read_text("utf-8")
    _write(file, text.replace("WORKFLOW_NAME", _name(file)))
    name = shlex.quote(str(file))
    click.echo(f"wrote {file}")
    for command, what in _next_commands(template, name):
        click.echo(f"  {command.ljust(44)}  {what}")
    return 0


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(str(file), f"{error.strerror}; choose another path") from None


def _name(file: Path) -> str:
    """A workflow's name made of its file's."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem).strip("-") or "workflow"


def _next_commands(template: str, name: str) -> list[tuple[str, str]]:
    run = f"holdfast run {name} -i name=Ada" if template == "chain" else f"holdfast run {name}"
    return [
        (f"holdfast validate {name}", "check it"),
        (f"holdfast workflow inspect {name}", "see its steps"),
        (run, "run it; every finished step is saved"),
        ("holdfast runs", "see its runs"),
    ]


# What is allowed in a workflow file and yet is probably not meant: warnings of `holdfast validate`.


WRITING = ("POST", "PATCH")


def warnings_of(definition: Definition, text: str) -> list[str]:
    """Every warning about a workflow, in plain words with the way out; `text` is the file's."""
    found = [*_unused(definition, text)]
    for step in definition.steps:
        for each in (step, *step.members):
            found += _about(each)
    if _has_agents(definition) and definition.workflow.limits.budget is None:
        found.append("agents may spend without bounds; set limits.budget, in US dollars")
    return found


def _unused(definition: Definition, text: str) -> Iterator[str]:
    if _calls_python(definition):
        return
    for kind, names in (("inputs", definition.workflow.inputs), ("vars", definition.workflow.vars)):
        if not names or re.search(rf"\b{kind}\s*+(?![\s.\[:\w])", text):
            continue
        used = _used(kind, text)
        for name in names:
            if name not in used:
                yield f"{kind}.{name} is declared and never used; use it or remove it"


def _used(kind: str, text: str) -> set[str]:
    """The names that are read of `inputs` or `vars`. After a dot, `a-b` may be one name, or one less another."""
    found: set[str] = set()
    for dotted, quoted in re.findall(
        rf"\b{kind}\s*+(?:\.\s*+([\w-]++)|\[\s*+['\"]([^'\"]{{0,200}}+)['\"])", text
    ):
        words = dotted[:200].split("-")
        found.update("-".join(words[:count]) for count in range(1, len(words) + 1))
        found.add(quoted)
    return found


def _calls_python(definition: Definition) -> bool:
    """Whether a function may be given all inputs and constants."""
    return any(each.python is not None for step in definition.steps for each in (step, *step.members))


def _about(step: Step) -> Iterator[str]:
    if isinstance(step.agent, Agent) and step.agent.api_key and "secrets" not in step.agent.api_key:
        yield f"step {step.name!r} has its api_key in the file; write {{{{ secrets.NAME }}}} instead"
    if step.shell is not None and step.timeout is None:
        yield f"step {step.name!r} may run for ever; give it a timeout"
    if _writes(step) and step.idempotent and step.if_interrupted is None:
        yield (
            f"step {step.name!r} sends a {_method(step)}, which is repeated if the process dies in it; "
            "say `idempotent: false`, or `if_interrupted: rerun` if that does no harm"
        )


def _writes(step: Step) -> bool:
    return _method(step) in WRITING


def _method(step: Step) -> str:
    if step.http is None:
        return ""
    return step.http.method or (
        "POST" if step.http.json_ is not None or step.http.body is not None else "GET"
    )


def _has_agents(definition: Definition) -> bool:
    return any(each.agent is not None for step in definition.steps for each in (step, *step.members))
