"""Secrets from the environment, and scrubbing them out of everything that is shown or stored."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import HoldfastError

REDACTED = "***"


class SecretError(HoldfastError):
    """A secret is missing or too short to be hidden."""


class Secrets(Mapping[str, str]):
    def __init__(self, env: Mapping[str, str]) -> None:
        raise NotImplementedError

    def __getitem__(self, name: str) -> str:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


class Scrubber(logging.Filter):
    def __init__(self, secrets: Secrets | None = None) -> None:
        raise NotImplementedError

    def scrub(self, value: Any) -> Any:
        raise NotImplementedError

    def scrub_exception(self, error: BaseException) -> str:
        raise NotImplementedError
