"""Measures the memory of the processes that this one starts."""

from __future__ import annotations

import threading

import psutil

_EVERY_S = 0.2


class PeakMemory:
    """Samples the memory of all descendants of this process in the block, and keeps the peak of their sum.

    :ivar peak_mb: in MiB of PSS, in which processes share what they have in common
    """

    def __init__(self) -> None:
        self.peak_mb = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        own = psutil.Process()
        while True:
            total = 0
            for process in own.children(recursive=True):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak_mb = max(self.peak_mb, total >> 20)
            if self._over.wait(_EVERY_S):
                return
