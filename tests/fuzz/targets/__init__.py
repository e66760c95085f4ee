"""Everything that is fuzzed, by name."""

from __future__ import annotations

from tests.fuzz.target import Target
from tests.fuzz.targets import (
    capsules,
    command_line,
    costs,
    decoders,
    differences,
    language,
    output,
    shell,
    stored,
    times,
    values,
    workflow_files,
)

_MODULES = (
    decoders,
    values,
    language,
    shell,
    output,
    times,
    workflow_files,
    differences,
    capsules,
    stored,
    command_line,
    costs,
)

TARGETS: dict[str, Target] = {target.name: target for module in _MODULES for target in module.TARGETS}
