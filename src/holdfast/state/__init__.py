"""The state of a run: schema, reducers, values that can be stored."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
