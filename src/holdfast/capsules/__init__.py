"""Capsules: one run in one file, to be carried to any store on any machine."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
