"""`hooks`: commands that are told how a run goes. They change nothing in it, and their failures are only logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from holdfast.errors import HoldfastError
from holdfast.flows.kinds.process import Command
from holdfast.flows.model import Hooks
from holdfast.flows.world import World

logger = logging.getLogger("holdfast")

TIMEOUT = 60.0


class Announcer:
    """Runs the hooks of one workflow, with the facts as variables: HOLDFAST_RUN_ID, HOLDFAST_STATUS and so on."""

    def __init__(self, hooks: Hooks, world: World, workflow: str) -> None:
        self._hooks, self._world, self._workflow = hooks, world, workflow

    def started(self, run_id: str) -> None:
        """A run began, or was taken up again."""
        self._tell("on_start", self._hooks.on_start, run_id, {"HOLDFAST_STATUS": "running"})

    def ended(self, run_id: str, status: str, error: str = "") -> None:
        """A run completed, or failed with an error; nobody is told of other endings."""
        facts = {"HOLDFAST_STATUS": status, "HOLDFAST_ERROR": self._world.scrubber.scrub(error)}
        if status == "completed":
            self._tell("on_complete", self._hooks.on_complete, run_id, facts)
        elif status == "failed":
            self._tell("on_error", self._hooks.on_error, run_id, facts)

    def _tell(self, name: str, script: str | None, run_id: str, facts: Mapping[str, str]) -> None:
        if script is None:
            return
        known = {"HOLDFAST_RUN_ID": run_id, "HOLDFAST_WORKFLOW": self._workflow, **facts}
        world = self._world
        command = Command(
            script,
            cwd=world.base,
            env={**world.command_env(), **known},
            timeout=TIMEOUT,
            scrub=world.scrubber.scrub,
        )
        try:
            done = command.run(lambda: False, lambda line: None)
        except HoldfastError as error:
            logger.error("hook %s: %s", name, self._world.scrubber.scrub(str(error)))
            return
        if done.code:
            logger.error("hook %s ended with code %d: %s", name, done.code, done.stderr.strip()[-500:])
