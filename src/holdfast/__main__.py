"""The entry point of the command line: `holdfast`, or `python -m holdfast`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; answer its exit code. Ctrl+C works while the command is still being loaded, too."""
    try:
        from holdfast.cli.main import main as run
    except KeyboardInterrupt:
        return INTERRUPTED
    return run(arguments)


def script() -> None:
    """Run the command of this process and exit; once all output is written, nothing can interrupt it."""
    code = main()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


if __name__ == "__main__":
    script()
