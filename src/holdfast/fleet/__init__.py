"""Workers that share the runs of a store, queues and schedules."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
