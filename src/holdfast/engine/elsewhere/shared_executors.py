"""The executors that all runs of this process share: made when they are first used, ended with the process."""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
from typing import TYPE_CHECKING

from holdfast.engine.elsewhere.dask_client import DaskClusters
from holdfast.plan.executor_choice import DASK, PROCESSES, ExecutorChoice

if TYPE_CHECKING:
    from holdfast.engine.elsewhere.process_pool import ProcessPool


class SharedExecutors:
    """Process pools by their size, and clients of Dask clusters."""

    def __init__(self) -> None:
        self._reset()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[int | None, ProcessPool] = {}
        self._dask = DaskClusters()

    def _leave_to_parent(self) -> None:
        for pool in self._pools.values():
            pool.forget()
        self._dask.forget()
        self._reset()

    def executor(self, choice: ExecutorChoice) -> concurrent.futures.Executor:
        """The executor that was chosen. To reach a cluster may take a while."""
        if choice.own is not None:
            return choice.own
        if choice.kind == DASK:
            return self._dask.executor(choice.address)
        assert choice.kind == PROCESSES
        with self._lock:
            if choice.size not in self._pools:
                from holdfast.engine.elsewhere.process_pool import ProcessPool

                self._pools[choice.size] = ProcessPool(choice.size)
            return self._pools[choice.size]

    def close(self) -> None:
        """End the processes and leave the clusters; both are made anew when they are needed again."""
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.shutdown()
        self._dask.close()


shared = SharedExecutors()
