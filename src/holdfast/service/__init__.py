"""What the HTTP API, the MCP server and the web pages share: reading runs, acting on them, executing them."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
