"""Facts about runs for every reader, from the journal alone."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
