"""Writes `__init__.pyi` of every package from `holdfast.names`, for type checkers; `--check` only compares."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast import errors
from holdfast.names import PUBLIC, homes

SOURCE = Path(next(iter(holdfast.__path__)))


def path_of(package: str) -> Path:
    """Return the stub of a package."""
    return SOURCE.joinpath(*package.split(".")[1:], "__init__.pyi")


def stub(package: str) -> str:
    """Return what a package offers, as imports."""
    known = homes(package)
    if package == "holdfast":
        known |= {name: "holdfast.errors" for name, kind in vars(errors).items() if is_error(kind)}
    lines = sorted(f"from {module} import {name} as {name}" for name, module in known.items())
    return (
        "\n".join(["# Written by docs/make_stubs.py from holdfast/names.py.", "", *lines, *_rest(package)])
        + "\n"
    )


def _rest(package: str) -> Iterator[str]:
    yield from ("", "__all__: list[str]")
    if package == "holdfast":
        yield "__version__: str"


def is_error(item: object) -> bool:
    return isinstance(item, type) and issubclass(item, errors.HoldfastError)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if something is not up to date"
    )
    only_checks = parser.parse_args().check
    for package in PUBLIC:
        path, text = path_of(package), stub(package)
        if not only_checks:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            raise SystemExit(f"{path} is not up to date; run: python docs/make_stubs.py")


if __name__ == "__main__":
    main()
