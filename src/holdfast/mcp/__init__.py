"""Workflows and runs as tools of language models: a server of the Model Context Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.errors import CONFIGURATION, HoldfastError

if TYPE_CHECKING:
    from holdfast.mcp.server import McpServer


class ExtraMissing(HoldfastError):
    """An optional dependency is not installed."""

    exit_code = CONFIGURATION


def server_class() -> type[McpServer]:
    """Return what serves models; name the extra if it is missing."""
    try:
        from holdfast.mcp.server import McpServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ExtraMissing("serving models needs the package mcp: pip install 'holdfast[mcp]'") from None
    return McpServer
