"""`shell`: a command; JSON on its standard output becomes data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.data.state import State
from holdfast.engine.driving.context import Context
from holdfast.errors import HoldfastError
from holdfast.flows.errors import StepFailed
from holdfast.flows.kinds.json_text import read_json, write_json
from holdfast.flows.kinds.kind import Plain, Result
from holdfast.flows.kinds.process import Command, Finished
from holdfast.flows.model import Shell, Step
from holdfast.flows.shell.words import safe_script
from holdfast.flows.world import World


class RunCommand(Plain):
    """Runs a script in the workflow's folder. Values arrive as variables, so they are never run as code."""

    def __init__(self, step: Step, world: World) -> None:
        super().__init__()
        shell = step.shell if isinstance(step.shell, Shell) else Shell(run=step.shell or "")
        self._shell, self._world, self._timeout = shell, world, step.timeout
        field = "shell.run" if isinstance(step.shell, Shell) else "shell"
        self._script = self.texts.text(field, shell.run)
        self._env = self.texts.texts("shell.env", shell.env)
        self._cwd = None if shell.cwd is None else self.texts.text("shell.cwd", shell.cwd)
        self._stdin = self.texts.tree("shell.stdin", shell.stdin)

    def run(self, scope: Mapping[str, Any], state: State, ctx: Context) -> Result:
        command = self._command(scope, ctx)
        done = command.run(lambda: ctx.cancelled, ctx.emit)
        if done.code not in self._shell.ok_codes:
            raise StepFailed(self._complaint(done))
        return {"output": self._data(done.stdout), "exit_code": done.code, "stderr": done.stderr}

    def _command(self, scope: Mapping[str, Any], ctx: Context) -> Command:
        own = {name: text.render(scope) for name, text in self._env.items()}
        env = {**self._world.command_env(), **own}
        try:
            script, values = safe_script(self._script.template, scope, self._shell.programs, env)
        except HoldfastError as error:
            raise StepFailed(f"{self._script.field}: {error}") from None
        return Command(
            script,
            shell=self._shell.shell,
            cwd=self._folder(scope),
            env={**env, **values, **_facts(ctx)},
            stdin=_as_bytes(self._stdin.look(scope)),
            timeout=self._timeout,
            scrub=self._world.scrubber.scrub,
        )

    def _folder(self, scope: Mapping[str, Any]) -> Path:
        folder = self._world.base
        if self._cwd is not None:
            folder = folder / self._cwd.render(scope)
        if not folder.is_dir():
            raise StepFailed(
                f"shell.cwd: there is no folder {folder} to run the command in; "
                "the path is relative to the workflow file"
            )
        return folder

    def _complaint(self, done: Finished) -> str:
        how = f"ended with code {done.code}" if done.code >= 0 else f"was ended by signal {-done.code}"
        said = done.stderr.strip() or str(self._world.scrubber.scrub(done.stdout)).strip()
        tail = "\n".join(said.splitlines()[-10:])[-2000:]
        return f"the command {how}{': ' + tail if tail else ''}"

    def _data(self, text: str) -> Any:
        form = self._shell.output
        if form == "text":
            return text
        if form == "lines":
            return text.removesuffix("\n").split("\n") if text else []
        try:
            return read_json(text)
        except ValueError as error:
            if form == "json":
                shown = str(self._world.scrubber.scrub(text))[:200]
                raise StepFailed(
                    f"shell.output: the command was to print JSON and did not ({error}): {shown!r}"
                ) from None
            return text.removesuffix("\n").removesuffix("\r")


def _facts(ctx: Context) -> dict[str, str]:
    return {
        "HOLDFAST_RUN_ID": ctx.run_id,
        "HOLDFAST_STEP": ctx.step,
        "HOLDFAST_IDEMPOTENCY_KEY": ctx.idempotency_key,
    }


def _as_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    return write_json(value, "shell.stdin") if not isinstance(value, str) else value.encode(errors="replace")
