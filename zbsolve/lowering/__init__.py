"""From a timetable to what every rank does: computing, sending, receiving, keeping buffers.

::

    lower     timetable -> actions of every rank, in order, with a slot for every receive
    verify    refuses actions that lose a message, mix up two, reuse a buffer too early, or can hang

`actions` says exactly what an executor does for each action; `verify` proves that no rank can hang
under those rules. Nothing here needs torch.
"""

from __future__ import annotations

from zbsolve.lowering.actions import Action, Buffers, Do, Lowered, Message
from zbsolve.lowering.place import lower
from zbsolve.lowering.verify import faults, verify

__all__ = ["Action", "Buffers", "Do", "Lowered", "Message", "faults", "lower", "verify"]
