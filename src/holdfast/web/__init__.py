"""The HTTP API and the web pages: one ASGI app over a service."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
