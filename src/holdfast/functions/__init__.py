"""Durable plain functions: `@workflow` and `@step`, questions, sleeps, and values that a resume gives again."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
