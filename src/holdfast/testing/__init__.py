"""Tests of workflows and stores: crashes at every boundary, skipped time, fakes, the store contract."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
