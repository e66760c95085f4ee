"""`holdfast demo`: the demonstration, told in words or as JSON."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from holdfast.demo import STEPS, Story, play


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what happened as JSON.")
@click.option(
    "--store",
    metavar="URL",
    help="Keep the run there (sqlite:///PATH, file:///DIR) instead of in a temporary folder.",
)
def demo(store: str | None, as_json: bool) -> None:
    """Run ten steps into a rate limit, stop, and resume; needs no key and no network.

    \b
      holdfast demo
      holdfast demo --store sqlite:///demo.db
    """
    if store is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            story = play(f"sqlite:///{Path(folder) / 'runs.db'}")
    else:
        story = play(store)
    click.echo(json.dumps(story.to_dict(), indent=2) if as_json else _told(story, kept=store is not None))


def _told(story: Story, kept: bool) -> str:
    first, second = story.first, story.second
    lines = [
        "Holdfast demo: ten steps, a rate limit at step 9, and a resume.",
        f"The run is {story.run_id!r} in {story.store}",
        "",
        "First drive:",
        *_steps(first.ran, "done"),
        *_steps((first.failed,), "FAILED, the service answered 429"),
        "",
        "The run stopped; everything finished is saved. The error says how to go on:",
        f"  {first.error}",
        "",
        "Later the limit is lifted. The store is opened anew and the run resumed:",
        f"  {story.resume}",
        "",
        "Second drive:",
        f"   1-{second.kept}  kept, not run again",
        *_steps(second.ran, "done"),
        "",
        f"The run is {second.status}: {second.kept} steps kept, {len(second.ran)} run after the resume, "
        f"{len(story.parts)} parts written, {story.checkpoints} checkpoints.",
        f"The service was called {sum(story.calls.values())} times for {len(STEPS)} steps: "
        f"only {first.failed!r}, which was refused, was called twice.",
    ]
    if not kept:
        lines.append("The store was in a temporary folder and is gone; --store sqlite:///demo.db keeps it.")
    return "\n".join(lines)


def _steps(names: Sequence[str], how: str) -> list[str]:
    return [f"  {STEPS.index(name) + 1:2}  {name:<9} {how}" for name in names]
