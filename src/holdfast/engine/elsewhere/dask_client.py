"""Clients of Dask clusters, one for each scheduler, shared by all runs of this process."""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import threading
from typing import Any

from holdfast.errors import ExecutorLost, HoldfastError

_CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 2.0


class _Cluster:
    """One scheduler, and the client that talks to it once it is needed."""

    def __init__(self, address: str) -> None:
        self._address, self._lock = address, threading.Lock()
        self.client: Any = None

    def executor(self) -> concurrent.futures.Executor:
        with self._lock:
            if self.client is None or self.client.status in ("closing", "closed"):
                self.client = _connected(self._address)
            # No two tasks are equal, so Dask need not look whether they are.
            executor: concurrent.futures.Executor = self.client.get_executor(pure=False)
            return executor


class DaskClusters:
    """The clusters that are in use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clusters: dict[str, _Cluster] = {}

    def executor(self, address: str) -> concurrent.futures.Executor:
        """An executor on the cluster of the scheduler at `address`; it may take a while to reach it."""
        with self._lock:
            cluster = self._clusters.setdefault(address, _Cluster(address))
        return cluster.executor()

    def _clients(self) -> list[Any]:
        return [cluster.client for cluster in self._clusters.values() if cluster.client is not None]

    def close(self) -> None:
        """Leave all clusters."""
        for client in self._clients():
            with contextlib.suppress(Exception):
                client.close(timeout=_CLOSE_SECONDS)
        self._clusters.clear()

    def forget(self) -> None:
        """In a forked child: the clients are the parent's, whose threads are missing here."""
        for client in self._clients():
            client.status = "closed"


def _connected(address: str) -> Any:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise HoldfastError(
            f"executor 'dask:{address}' needs a package that is not installed: pip install 'holdfast[dask]'"
        ) from None
    try:
        return distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, name="holdfast")
    except (OSError, TimeoutError) as error:
        raise ExecutorLost(f"the Dask scheduler at {address} cannot be reached: {error}") from error
    except ValueError as error:
        raise HoldfastError(f"executor 'dask:{address}' does not name a Dask scheduler: {error}") from error


def is_loss(error: BaseException) -> bool:
    """Whether an error of a Dask cluster says that a worker or the scheduler is gone."""
    return type(error).__name__ in ("KilledWorker", "CommClosedError", "FutureCancelledError")
