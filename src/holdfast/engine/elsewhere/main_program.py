"""The main program as worker processes know it: where it is, and loading it for the functions that it defines."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from typing import NamedTuple

from holdfast.errors import HoldfastError

GUARD = (
    'put what starts the run under `if __name__ == "__main__":`, or define the nodes\' functions in a module '
    "of their own"
)


class Surroundings(NamedTuple):
    """What of the main process a task may rely on."""

    path: tuple[str, ...]
    folder: str
    main_name: str | None
    """The main program's name, if it was started as a module."""
    main_file: str | None
    arguments: tuple[str, ...]

    @classmethod
    def here(cls) -> Surroundings:
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        try:
            folder = os.getcwd()  # noqa: PTH109
        except OSError:
            folder = ""
        return cls(tuple(sys.path), folder, spec.name if spec else None, file, tuple(sys.argv))

    def enter(self) -> None:
        """Make this process look the same."""
        sys.path.extend(place for place in self.path if place not in sys.path)
        with contextlib.suppress(OSError):
            os.chdir(self.folder)


class _Loading:
    """Whether the main program is being loaded, which must start nothing meanwhile."""

    is_under_way = False


def refuse_while_loading() -> None:
    """Stop a program that starts runs while it is only loaded for the functions that it defines."""
    if _Loading.is_under_way:
        raise HoldfastError(f"the program starts a run when it is loaded in a worker process; {GUARD}")


class MainProgram:
    """The main program, loaded once it is needed: for functions and types that it defines."""

    def __init__(self) -> None:
        self._loaded = False

    def load(self, where: Surroundings) -> None:
        if self._loaded:
            return
        import runpy

        _Loading.is_under_way = True
        sys.argv = list(where.arguments)
        try:
            # The name by which multiprocessing, too, knows the main program in its children.
            if where.main_name is not None:
                found = runpy.run_module(where.main_name, run_name="__mp_main__", alter_sys=True)
            else:
                found = runpy.run_path(where.main_file or "", run_name="__mp_main__")
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:
            raise HoldfastError(f"the main program cannot be loaded: {error}; {GUARD}") from error
        finally:
            _Loading.is_under_way = False
        main = types.ModuleType("__mp_main__")
        main.__dict__.update(found)
        sys.modules["__main__"] = sys.modules["__mp_main__"] = main
        self._loaded = True
