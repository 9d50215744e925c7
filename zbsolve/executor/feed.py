"""One stream of batches for several readers, each at its own pace."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["Feed"]


class Feed:
    """Reads an iterable once, as the fastest reader needs it, and drops what the slowest has read.

    Parameters
    ----------
    items
        What is read.
    readers
        How many will read all of it.
    """

    def __init__(self, items: Iterable[Any], readers: int) -> None:
        self._items = iter(items)
        self._readers = readers
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[Any, int]] = {}
        self._read = 0
        self._ended = False

    def reader(self) -> Iterator[Any]:
        """All items, from the first; at most `readers` of these."""
        number = 0
        while True:
            with self._lock:
                if number == self._read:
                    if self._ended:
                        return
                    try:
                        self._kept[number] = next(self._items), self._readers
                    except StopIteration:
                        self._ended = True
                        return
                    self._read += 1
                item, left = self._kept.pop(number)
                if left > 1:
                    self._kept[number] = item, left - 1
            yield item
            number += 1
