"""`holdfast init`, `validate` and `workflow`: for people who write workflow files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click

from holdfast.capsules.format import MAGIC
from holdfast.cli.errors import COMPLETED, INVALID
from holdfast.cli.options import (
    FORCE,
    IN_PYTHON,
    JSON,
    STORE,
    Options,
    choice,
    file_path,
    flag,
    option,
    refuse_program,
)
from holdfast.cli.programs import checked_program
from holdfast.cli.session import Session, command
from holdfast.engine.owner import liveness
from holdfast.graph.graph import mermaid
from holdfast.views.drawing import svg
from holdfast.views.outlines import dot, folded, outline_text
from holdfast.views.runs import run_view
from holdfast.views.terminal import count, one_line, visible
from holdfast.workflows.description import described, outline_of, validated
from holdfast.workflows.model import json_schema
from holdfast.workflows.workflow import load_workflow

TEMPLATES = ("chain", "loop", "dag", "for-each", "gate")
DRAWN: dict[str, Callable[[dict[str, Any]], str]] = {"mermaid": mermaid, "dot": dot, "svg": svg}
TARGET = click.argument("target", metavar="WORKFLOW|RUN")


@command(
    click.argument(
        "workflows", metavar="WORKFLOW...", nargs=-1, required=True, type=click.Path(path_type=Path)
    ),
    flag("--strict", "Treat warnings as errors."),
    JSON,
)
def validate(session: Session, options: Options) -> int:
    """Check workflow files and print every problem of every file, with its place and the remedy.

    MODULE:NAME checks a workflow in Python: of a function, what may differ when it runs again. The exit code is 2 if
    there is a problem. Nothing is run, but modules are imported.

    \b
    Example:
      holdfast validate workflows/*.yaml --strict
      holdfast validate shop.orders:report
    """
    reports = [_checked(path) for path in options.workflows]
    bad = [report for report in reports if report["problems"] or (options.strict and report["warnings"])]
    session.print({"valid": not bad, "files": reports})
    for report in reports if not session.as_json else ():
        _print_report(report)
    return INVALID if bad else COMPLETED


def _checked(path: Path) -> dict[str, Any]:
    if IN_PYTHON.fullmatch(str(path)) and not path.exists():
        report = checked_program(str(path))
        return {**report, "warnings": [str(warning) for warning in report["warnings"]]}
    refuse_program(str(path))
    return validated(path)


def _print_report(report: dict[str, Any]) -> None:
    file = one_line(report["file"], 2_000)
    for problem in report["problems"]:
        click.echo(problem["text"].replace(report["file"], file))
    for warning in report["warnings"]:
        click.echo(one_line(f"{file}: warning: {warning}", 2_000))
    problems, steps = count(len(report["problems"]), "problem"), count(report["steps"], "step")
    click.echo(f"{file}: {problems if report['problems'] else f'valid, {steps}'}")


@click.group()
def workflow() -> None:
    """Describe and draw the workflow of a file or a run; print the JSON Schema of workflow files.

    \b
    Example:
      holdfast workflow inspect report.yaml
      holdfast workflow draw report.yaml > report.mmd
    """


@command(TARGET, STORE, JSON, group=workflow)
def inspect(session: Session, options: Options) -> None:
    """Describe the steps of a workflow file, or of the workflow of a stored run: layers, routes, what waits.

    WORKFLOW is a file. A run is described as its journal has it, so its file and its code need not be there. Steps of
    one layer may run together. Layers are not waves, which `history` and RUN@N count: a loop or a for-each takes
    several.

    \b
    Example:
      holdfast workflow inspect report.yaml
    """
    outline, kinds = _outline(session, options.target)
    session.print(described(outline, kinds), f"{outline['name']}: {count(len(outline['nodes']), 'step')}")
    if not session.as_json:
        click.echo(visible(outline_text(outline, kinds)))


@command(
    TARGET,
    choice("--format form", tuple(DRAWN), "The language of the drawing.", "mermaid"),
    STORE,
    group=workflow,
)
def draw(session: Session, options: Options) -> None:
    """Draw a workflow file, or the workflow of a stored run, as Mermaid, for Graphviz, or as SVG.

    \b
    Example:
      holdfast workflow draw report.yaml > report.mmd
      holdfast workflow draw report.yaml --format svg > report.svg
    """
    outline, _ = _outline(session, options.target)
    click.echo(DRAWN[options.form](outline), nl=False)


def _outline(session: Session, target: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the outline of a workflow's steps and, for a file, the kind of each."""
    path = Path(target)
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        return _outline_of_file(path)
    info = session.run(target)
    view = run_view(session.journal, info.run, is_alive=liveness(session.store))
    if not view.outline:
        raise click.BadParameter(f"run {view.run_id!r} has no graph: its state was saved by hand")
    return folded(view.outline, of_file=view.workflow_file is not None), {}


def _outline_of_file(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    _refuse_capsule(path)
    return outline_of(load_workflow(path))


def _refuse_capsule(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            raise click.UsageError(
                f"{path} is a capsule; look into it with: holdfast capsule import --inspect FILE"
            )


@command(option("-o --output", "Write it to this file.", type=file_path()), group=workflow)
def schema(session: Session, options: Options) -> None:
    """Print the JSON Schema of workflow files, for editors that check while you type.

    \b
    Example:
      holdfast workflow schema -o .holdfast/workflow.schema.json
    """
    output = options.output
    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text)
    click.echo(f"wrote {output}; for yaml-language-server put this first in a workflow file:")
    click.echo(f"# yaml-language-server: $schema={Path(os.path.relpath(output)).as_posix()}")


@command(
    click.argument("file", default="workflow.yaml", type=file_path()),
    FORCE,
    choice(
        "--template",
        TEMPLATES,
        "What it shows: steps one after the other, a loop, steps side by side, items of a list, a question.",
        "chain",
    ),
)
def init(session: Session, options: Options) -> None:
    """Write a first workflow file, with comments, that runs with no key and no network.

    FILE is workflow.yaml if it is not given.

    \b
    Example:
      holdfast init hello.yaml
      holdfast init review.yaml --template gate
    """
    file, template = options.file, options.template
    if file.exists() and not options.force:
        raise click.UsageError(f"{file} exists; --force overwrites it")
    text = (resources.files("holdfast.cli") / "starter" / f"{template}.yaml").read_text("utf-8")
    own_name = re.sub(r"[^A-Za-z0-9_-]+", "-", file.stem).strip("-") or "workflow"
    _write(file, text.replace("WORKFLOW_NAME", own_name))
    name = shlex.quote(str(file))
    commands = {
        f"holdfast validate {name}": "check it",
        f"holdfast workflow inspect {name}": "see its steps",
        f"holdfast run {name}{' -i name=Ada' if template == 'chain' else ''}": "run it; every finished step is saved",
        "holdfast runs": "see its runs",
    }
    click.echo(f"wrote {file}")
    for line, what in commands.items():
        click.echo(f"  {line.ljust(44)}  {what}")


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    except OSError as error:
        raise click.FileError(str(file), f"{error.strerror}; choose another path") from None
