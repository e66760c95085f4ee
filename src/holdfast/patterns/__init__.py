"""Predicates for edges, and chains, parallel work and choices, as functions and as nodes of graphs."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
