"""The way in to the command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; answer its exit code. Ctrl+C is heeded while the command is still being loaded, too."""
    try:
        from holdfast.cli.main import main as run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(arguments)


def script() -> None:
    """Run the command that this process was started for, and leave; what is all told cannot be interrupted."""
    code = main()
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    script()
