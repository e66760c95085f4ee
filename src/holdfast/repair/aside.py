"""Bytes that are put aside before they are replaced: never overwritten, readable by their owner only."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from holdfast.stores.disk import in_plain_words, sync, sync_folder, write_at
from holdfast.stores.run_folder import folder_name


class Aside:
    """A folder that is made when something is first put there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: list[Path] = []

    def keep(self, name: str, data: bytes) -> None:
        """Write bytes to a new file whose name begins like `name`."""
        with in_plain_words(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in itertools.count(1):
                path = self.folder / (folder_name(name) if number == 1 else f"{folder_name(name)}.{number}")
                try:
                    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                except FileExistsError:
                    continue
                break
            try:
                write_at(fd, data, 0)
                sync(fd)
            finally:
                os.close(fd)
            sync_folder(self.folder)
        self.kept.append(path)
