"""`shell`: a command; JSON on its standard output becomes data."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine.context import Context
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.kind import Plain, Result, rendered
from holdfast.flows.kinds.process import Command, Finished
from holdfast.flows.model import Shell, Step
from holdfast.flows.shell_words import safe_script
from holdfast.flows.world import World


class RunCommand(Plain):
    """Runs a script in the workflow's folder. Values arrive as variables, so they are never run as code."""

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        shell = step.shell if isinstance(step.shell, Shell) else Shell(run=step.shell or "")
        self._shell, self._world, self._timeout = shell, world, step.timeout
        self._script = self.texts.text(shell.run)
        self._env = self.texts.tree(shell.env)
        self._cwd = None if shell.cwd is None else self.texts.text(shell.cwd)
        self._stdin = self.texts.tree(shell.stdin)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        script, values = safe_script(self._script, scope)
        command = Command(
            script,
            shell=self._shell.shell,
            cwd=self._folder(scope),
            env={**self._world.env, **rendered(self._env, scope), **values, **_facts(ctx)},
            stdin=_as_bytes(rendered(self._stdin, scope)),
            timeout=self._timeout,
        )
        scrub = self._world.scrubber.scrub
        done = command.run(lambda: ctx.cancelled, lambda line: ctx.emit(scrub(line)))
        if done.code not in self._shell.ok_codes:
            raise StepFailed(scrub(_complaint(done)))
        return {
            "output": _data(done.stdout, self._shell.output),
            "exit_code": done.code,
            "stderr": done.stderr,
        }

    def _folder(self, scope: Mapping[str, Any]) -> Path:
        folder = self._world.base
        if self._cwd is not None:
            folder = folder / self._cwd.render(scope)
        if not folder.is_dir():
            raise StepFailed(
                f"there is no folder {folder} to run the command in; cwd is relative to the workflow file"
            )
        return folder


def _facts(ctx: Context) -> dict[str, str]:
    return {
        "HOLDFAST_RUN_ID": ctx.run_id,
        "HOLDFAST_STEP": ctx.step,
        "HOLDFAST_IDEMPOTENCY_KEY": ctx.idempotency_key,
    }


def _as_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()


def _complaint(done: Finished) -> str:
    how = f"ended with code {done.code}" if done.code >= 0 else f"was ended by signal {-done.code}"
    tail = "\n".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-10:])[-2000:]
    return f"the command {how}{': ' + tail if tail else ''}"


def _data(text: str, form: str) -> Any:
    if form == "text":
        return text
    if form == "lines":
        return text.splitlines()
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if form == "json":
            raise StepFailed(f"the command was to print JSON and did not ({error}): {text[:200]!r}") from None
        return text.removesuffix("\n").removesuffix(os.linesep)
