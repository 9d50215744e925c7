"""Asking a store that may be gone without pages of torch's own words.

When the process that keeps the store is killed, every question to it raises, which is dealt with, and prints a
stack of C++ frames besides. So torch warns of nothing while a question is under way; its errors it still tells.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

__all__ = ["QuietStore", "quiet"]

_ERROR = 2
_lock = threading.Lock()
_inside: list[int] = []
"""The level before, once for everyone who is inside."""


def _found() -> ctypes.c_int | None:
    """Torch's log level, which it reads from TORCH_CPP_LOG_LEVEL once and gives no other way to; None elsewhere."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


_level = _found()


@contextmanager
def quiet() -> Iterator[None]:
    """While in it, torch's C++ side tells errors but no warnings, in the whole process."""
    if _level is None:
        yield
        return
    with _lock:
        _inside.append(_inside[-1] if _inside else _level.value)
        _level.value = max(_level.value, _ERROR)
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                _level.value = before


class QuietStore:
    """A store whose questions are asked quietly.

    Parameters
    ----------
    store
        Of `torch.distributed`.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._store, name)

        def asked(*arguments: Any) -> Any:
            with quiet():
                return method(*arguments)

        return asked
