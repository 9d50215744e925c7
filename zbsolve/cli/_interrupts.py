"""Ctrl-C and SIGTERM: the first ends the search, and what was found is then told and written in peace."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["no_interruption", "one_interruption"]

Handler = Callable[[int, FrameType | None], None]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Batch systems end jobs with SIGTERM, and the best is worth keeping then too."""

PATIENCE_S = 30.0
"""Interrupts this soon after the first are not heard: the search is on its way out."""


@contextmanager
def one_interruption(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first signal, and again only where the first led to nothing."""
    heard: float | None = None

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal heard
        if heard is not None and clock() - heard < PATIENCE_S:
            return
        heard = clock()
        raise KeyboardInterrupt

    with _handled_by(interrupt):
        yield


@contextmanager
def no_interruption() -> Iterator[None]:
    """Let no signal in while an answer is told and written, which takes a moment."""
    with _handled_by(lambda signum, frame: None):
        yield


@contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only there can signals be handled
        yield
        return
    # one that our parent had ignored, as nohup and a shell's & do, stays ignored
    taken = {s: before for s in SIGNALS if (before := signal.getsignal(s)) not in (signal.SIG_IGN, None)}
    for number in taken:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, before in taken.items():
            signal.signal(number, before)
