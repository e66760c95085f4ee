"""Checkpoints as plain values: stores, data, configs, and pausing by checkpoint id."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
