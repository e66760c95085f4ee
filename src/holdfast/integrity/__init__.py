"""Checks of stores, and repair of damaged runs."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
