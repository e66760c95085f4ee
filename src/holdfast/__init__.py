"""Holdfast: workflows that journal every step before and after it runs, and resume after anything.

Names are loaded when they are first used, so that importing the package costs next to nothing. What is not for every
day is in packages: `holdfast.fleet`, `.capsules`, `.checkpoints`, `.errors`, `.events`, `.functions`, `.integrity`,
`.state`, `.stores`, `.testing`, `.tracing`, `.views`, `.workflows`.
"""

from importlib import import_module

from holdfast.names import serve

_load, __dir__, __all__ = serve(__name__)


def __getattr__(name: str) -> object:
    """Load a public name, or an error of `holdfast.errors`."""
    if name == "__version__":
        return import_module("importlib.metadata").version("holdfast")
    if name[:1].isupper() and name not in __all__:
        errors = import_module("holdfast.errors")
        if name in vars(errors):
            return getattr(errors, name)
    return _load(name)
