"""Workflow files: from YAML to a graph."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
