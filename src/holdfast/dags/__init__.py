"""DAGs as data: tasks that name registered tools, executed in layers, replanned and approved on the way."""

from holdfast.names import serve

__getattr__, __dir__, __all__ = serve(__name__)
