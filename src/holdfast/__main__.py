"""The command line: `python -m holdfast demo`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast.demo import STEPS, Story, play
from holdfast.errors import HoldfastError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; answer its exit code. No failure of Holdfast's own ends in a traceback."""
    options = _parser().parse_args(arguments)
    try:
        _demo(options.store, options.json)
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"holdfast: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="holdfast", description="Workflows that journal every step and resume after anything."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    about = "run ten steps into a rate limit, stop, and resume; needs no key and no network"
    demo = commands.add_parser("demo", help=about, description=about[0].upper() + about[1:] + ".")
    demo.add_argument("--json", action="store_true", help="print what happened as JSON")
    demo.add_argument(
        "--store",
        metavar="URL",
        help="keep the run there (sqlite:///PATH, file:///DIR, memory://) instead of in a temporary folder",
    )
    return parser


def _demo(store: str | None, as_json: bool) -> None:
    if store is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            story = play(f"sqlite:///{Path(folder) / 'runs.db'}")
    else:
        story = play(store)
    print(json.dumps(story.to_dict(), indent=2) if as_json else _told(story, kept=store is not None))


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


if __name__ == "__main__":
    sys.exit(main())
