"""Writes docs/reference/cli/*.md, a page per command, from the commands' own help; `--check` only compares."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from holdfast.capsules.export import ExportedRun
from holdfast.capsules.import_run import ImportedRun
from holdfast.capsules.summary import CapsuleInfo, CapsuleStep
from holdfast.cli.commands.checkpoints import Removal
from holdfast.cli.commands.store import report_as_json, run_as_json
from holdfast.cli.detach import queued_as_json
from holdfast.cli.display.plans import Row, plan_as_json
from holdfast.cli.display.show import Ending
from holdfast.cli.display.tables import schema_as_json, usage_as_json
from holdfast.cli.errors import error_as_json
from holdfast.cli.main import ENTRIES, commands
from holdfast.engine.transfer import CopyOutcome
from holdfast.fleet.queues import QueueLine
from holdfast.fleet.schedules import ScheduleLine
from holdfast.integrity.repair import Repair, StoreRepair
from holdfast.integrity.report import Damage, RunReport, StoreReport
from holdfast.journal.run_state import Spending
from holdfast.values import RunStatus
from holdfast.views.charges import Portion
from holdfast.views.charges import Row as Amounts
from holdfast.views.comparison import ComparedRun, Comparison, StepDifference
from holdfast.views.diff.changes import (
    ItemChanged,
    ItemsRemoved,
    ListEdited,
    MapEdited,
    ObjectEdited,
    Replaced,
    SetEdited,
    SpanReplaced,
    TextEdited,
)
from holdfast.views.diff.states import Side, StateDifference
from holdfast.views.family import Branch, Family, Member
from holdfast.views.history import History, KeyChange, Point
from holdfast.views.plain import View
from holdfast.views.run_view import (
    Driver,
    FaultView,
    Items,
    Ledger,
    NoteView,
    PauseView,
    RemarkView,
    RunLine,
    RunView,
    StepView,
)
from holdfast.views.timeline import TimelineEvent
from holdfast.views.usage import RunLedger
from holdfast.workflows.foreign import Deed

FOLDER = Path(__file__).parent / "reference" / "cli"
NOTE = "This page is written by `docs/make_cli_reference.py` from the command's own help.\n"

CHECKPOINT = "checkpoint_id, run_id, seq, wave, nodes, next, created_at, bytes"


def keys(what: type[View] | Callable[..., Any]) -> str:
    """Return the keys of a view, or those that the docstring of an `as_json` names."""
    if isinstance(what, type) and issubclass(what, View):
        return what.json_keys()
    return " ".join((inspect.getdoc(what) or "").split()).removeprefix("Keys: ").rstrip(".")


WHOLE = keys(RunView).partition("unpriced, ")[2]

ENDING = [
    ("the document", keys(Ending.as_json)),
    ("each of pauses", keys(PauseView)),
    ("error", "step, attempt, message"),
    ("if nothing could be run", keys(error_as_json)),
]

SAID = (
    "the document",
    "run_id, command, applied, status, tags; applied is false if it is still to be written down",
)
REMARKED = ("if nothing is said", "run_id, tags, remarks")
REMARKS = [("each of remarks", keys(RemarkView)), ("each of notes", keys(NoteView))]

JSON: dict[str, list[tuple[str, str]]] = {
    "run": ENDING,
    "resume": [
        *ENDING,
        ("with --plan", keys(plan_as_json)),
        ("with --detach", keys(queued_as_json)),
        ("each of steps of a plan", ", ".join(Row._fields)),
    ],
    "answer": [("the document", "run_id, answered, open; with --resume as for resume")],
    **{
        name: [
            ("the document", "run_id, command, applied, status; applied is false if it is still to be done")
        ]
        for name in ("runs edit", "steps skip", "steps modify", "steps inject", "steps replan")
    },
    "history": [
        ("the document", f"store, {keys(History)}"),
        ("each of checkpoints", keys(Point)),
        ("each of changes", keys(KeyChange)),
        ("with --tree", f"store, {keys(Family)}"),
        ("each of members", keys(Member)),
        ("parent of a member", keys(Branch)),
    ],
    "delete": [("the document", "run_id, deleted")],
    "fork": [("the document", "run_id, parent, status, store; with --run as for resume")],
    "runs promote": [("the document", "run_id, checkpoint_id, status, store")],
    "runs rollback": [("the document", "run_id, checkpoint_id, status, store")],
    "runs compare": [
        ("the document", f"store, {keys(Comparison)}"),
        ("one and other", keys(ComparedRun)),
        ("ancestor", keys(Branch)),
        ("each of differing", keys(StepDifference)),
        ("state", f"{keys(StateDifference)}; as for diff"),
    ],
    "diff": [
        ("the document", f"store, {keys(StateDifference)}"),
        ("one and other", keys(Side)),
        ("each of facts", "from, to"),
        ("a mapping that changed", keys(MapEdited)),
        ("a list", keys(ListEdited)),
        ("each of edits that is a changed item", keys(ItemChanged)),
        ("each that is some removed or inserted ones", keys(ItemsRemoved)),
        ("a set", keys(SetEdited)),
        ("a text", keys(TextEdited)),
        ("each of hunks", "before, after, lines"),
        ("one long line", keys(SpanReplaced)),
        ("another value", keys(Replaced)),
        ("a value of a type of yours", keys(ObjectEdited)),
        ("with --patch", "a list; each has op, path, value"),
    ],
    "runs": [("the document", "store, runs"), ("each of runs", keys(RunLine))],
    "show": [
        (
            "the document",
            f"{keys(RunLine)}, {WHOLE}, held, store, as_of; with --state also the whole state",
        ),
        ("driver", keys(Driver)),
        ("flow", "path, digest"),
        ("parent", "run_id, seq"),
        ("each of steps", keys(StepView)),
        ("items of a step", keys(Items)),
        ("each of pauses", keys(PauseView)),
        ("error", keys(FaultView)),
        ("ledger", keys(Ledger)),
        ("each of refusals", "command, reason, by"),
        ("facts", "host, platform, python, holdfast, packages, git; and what was added"),
        ("git", "commit, branch, dirty"),
        *REMARKS,
        ("with --step", "that step alone, and its whole output and result"),
    ],
    "runs status": [
        ("the document", f"{keys(RunLine)}, pauses, held, exit_code"),
        ("each of pauses", keys(PauseView)),
    ],
    "events": [("each line", keys(TimelineEvent))],
    "runs cost": [
        ("of one run", f"{keys(RunLedger)}, store"),
        (
            "of several, or with --by",
            "store, by, runs, total, rows, more, unreadable; more is how many rows are left out",
        ),
        ("own, total of several, each of steps, models and rows", keys(Amounts)),
        ("total of one run, inherited", "calls, input_tokens, output_tokens, cost, unpriced"),
        ("kept, saved, reused", keys(Portion)),
    ],
    "runs tag": [SAID, REMARKED, *REMARKS],
    "runs note": [SAID, REMARKED, *REMARKS],
    "checkpoints keep": [SAID],
    "store fsck": [
        ("the document", f"{keys(StoreReport.as_json)}, repair"),
        ("each of runs", keys(RunReport.as_json)),
        (
            "each of damages",
            f"{keys(Damage.as_json)}; part is journal, snapshot, mark, facts, inbox or store",
        ),
        ("intact", "after, to"),
        ("last_good_checkpoint", "checkpoint_id, seq, wave, nodes, at"),
        ("repair, with --repair", keys(StoreRepair.as_json)),
        ("each of its runs", keys(Repair.as_json)),
    ],
    "checkpoints list": [("the document", "store, checkpoints"), ("each of checkpoints", CHECKPOINT)],
    "checkpoints show": [("the document", f"{CHECKPOINT}, workflow, state, resume, tags, keep, notes")],
    "checkpoints prune": [
        ("the document", "dry_run, runs, checkpoints, removed"),
        ("each of removed", keys(Removal.as_json)),
    ],
    "checkpoints clear": [("the document", "as for prune")],
    "validate": [
        ("the document", "valid, files"),
        ("each of files", "file, workflow, steps, problems, warnings"),
        ("each of problems", "file, line, column, message, hint, text"),
    ],
    "workflow inspect": [
        ("the document", "name, steps"),
        ("each of steps", "name, kind, layer, next, waits_for, steps"),
        ("each of next", "to, when, choice"),
    ],
    "submit": [("the document", f"{keys(queued_as_json)}, created, store")],
    "worker": [
        ("each line", "at, worker, kind"),
        ("of a run also", "run_id, workflow, queue, text, due_at"),
        ("kind", "started, taken, conflict, refused, stopped, or the status that a run was left in"),
        ("with started", "store, queues, concurrency"),
    ],
    "queue list": [
        ("the document", "store, queues"),
        ("each of queues", keys(QueueLine.as_json)),
        ("rate", "starts, seconds"),
    ],
    "queue set": [("the document", "queue, max_running, rate, is_paused")],
    "queue pause": [("the document", "as for set")],
    "queue resume": [("the document", "as for set")],
    "queue unset": [("the document", "as for set")],
    "schedule add": [("the document", keys(ScheduleLine.as_json))],
    "schedule list": [("the document", "store, schedules"), ("each of schedules", "as for add")],
    "schedule pause": [("the document", "as for add")],
    "schedule resume": [("the document", "as for add")],
    "schedule remove": [("the document", "name, removed")],
    "schedule next": [("the document", "cron, zone, times")],
    "capsule export": [
        ("the document", f"{keys(ExportedRun.as_json)}, file"),
        ("with --format jsonl", "run_id, file, lines"),
    ],
    "capsule import": [
        ("the document", f"{keys(ImportedRun.as_json)}, deeds, store"),
        ("with --inspect", f"{keys(CapsuleInfo.as_json)}, deeds, reads, file"),
        ("each of steps", keys(CapsuleStep.as_json)),
        ("ledger", f"{', '.join(Spending._fields)}, nodes"),
        ("flow", "path, digest"),
        ("each of deeds, what resuming the run would do", ", ".join(Deed._fields)),
    ],
    "capsule keygen": [("the document", "private, public, fingerprint")],
    "store copy": [
        ("the document", keys(report_as_json)),
        ("counts", ", ".join(CopyOutcome)),
        ("each of runs", keys(run_as_json)),
    ],
    "store stats": [
        ("the document", keys(usage_as_json)),
        ("statuses, those that there are", ", ".join(RunStatus)),
        ("each of drivers", "driver, runs"),
        ("each of largest", "run_id, workflow, status, entries, bytes"),
    ],
    "store migrate": [("the document", keys(schema_as_json))],
    "doctor": [("the document", "ok, checks"), ("each of checks", "name, state, text")],
}
"""The keys of what `--json` prints. They stay; others may come."""

VALUES = """
Values of runs are printed as JSON. Types that JSON lacks: dates and times are ISO 8601 text, durations are
seconds, ids, paths and exact decimals are text, tuples and sets are lists, and anything else is an object whose
`$type` names the type (bytes: `{"$type": "bytes", "base64": …}`).
"""


def page(name: str, command: click.Command) -> str:
    """The page of one command, the commands of a group below it."""
    parts = [f"# holdfast {name}\n", *describe(name, command, "##")]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            parts.append(f"## holdfast {name} {inner_name}\n")
            parts += describe(f"{name} {inner_name}", inner, "###")
    return "\n".join([*parts, NOTE])


def describe(name: str, command: click.Command, level: str) -> Iterator[str]:
    """What a command's help says, its options as a table."""
    root = click.Context(commands, info_name="holdfast", **commands.context_settings)
    context = click.Context(command, parent=root, info_name=name)
    yield from paragraphs(command.help or "")
    yield f"```text\n{usage(context)}\n```\n"
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [record for record in records if record is not None and record[1]]
    if rows:
        yield f"{level} Options of {name}\n"
        yield "| option | |\n|---|---|"
        yield "\n".join(f"| `{cell(option)}` | {cell(text)} |" for option, text in rows) + "\n"
    if name in JSON:
        yield f"{level} JSON of {name}\n"
        yield "\n".join(f"- {what}: {listed(found)}" for what, found in JSON[name]) + "\n"
        if name == "show":
            yield VALUES.strip() + "\n"


def usage(context: click.Context) -> str:
    return context.get_usage().removeprefix("Usage: ")


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a help text; what it shows verbatim becomes a block."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if not paragraph.startswith("\b"):
            yield paragraph.strip() + "\n"
            continue
        lines = paragraph.removeprefix("\b").strip("\n").splitlines()
        if not lines[0].startswith(" "):
            yield f"{lines.pop(0)}\n"
        yield "```text\n" + "\n".join(line.strip() for line in lines) + "\n```\n"


def cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def listed(names: str) -> str:
    """Names as code, the words between them as they are."""
    return re.sub(r"(^|(?<=, )|(?<=; ))([a-z_]+)(?=,|;|$)", lambda found: f"`{found[0]}`", names)


def index() -> str:
    """The list of all commands."""
    parts = ["# The command line\n", "Every command has `--help`. Exit codes are the same everywhere:\n"]
    parts.append(
        "| code | |\n|---|---|\n| 0 | completed |\n| 1 | failed |\n| 2 | an invalid workflow, or wrong usage |\n"
        "| 3 | configuration: a store that cannot be opened, something missing |\n| 4 | paused |\n"
        "| 130 | interrupted with Ctrl+C |\n| 143 | terminated |\n"
    )
    parts.append(
        "With `--json`, a command that fails also prints the error on stdout, as one JSON object "
        f"with the keys {listed(keys(error_as_json))}.\n"
    )
    for section in dict.fromkeys(entry.section for entry in ENTRIES.values()):
        parts.append(f"## {section}\n")
        found = [(name, entry) for name, entry in ENTRIES.items() if entry.section == section]
        parts.append("\n".join(f"- [{name}]({name}.md): {entry.help}" for name, entry in found) + "\n")
    parts.append("This page is generated by `docs/make_cli_reference.py`.\n")
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Every page by its file name."""
    context = click.Context(commands, info_name="holdfast")
    found = {"README.md": index()}
    for name in ENTRIES:
        command = commands.get_command(context, name)
        assert command is not None
        found[f"{name}.md"] = page(name, command)
    return found


def main() -> None:
    wanted = pages()
    there = {path.name: path.read_text("utf-8") for path in FOLDER.glob("*.md")}
    if sys.argv[1:] == ["--check"]:
        stale = sorted({name for name in wanted | there if wanted.get(name) != there.get(name)})
        if stale:
            raise SystemExit(
                f"docs/reference/cli: {', '.join(stale)} not up to date; run: python docs/make_cli_reference.py"
            )
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in there.keys() - wanted.keys():
        (FOLDER / name).unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
