"""The passphrase of a capsule: from a file, the environment, or whoever sits at the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from holdfast.capsules.locking import VARIABLE, read_passphrase


def passphrase(file: Path | None, *, new: bool) -> str | None:
    """The passphrase that is given, or asked for; `None` if there is none. A `new` one is asked for twice."""
    if file is not None:
        return read_passphrase(file)
    given = os.environ.get(VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        return None
    text: str = click.prompt("passphrase", hide_input=True, confirmation_prompt=new, err=True)
    return text
