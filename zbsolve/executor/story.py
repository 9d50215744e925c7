"""Telling what a rank is at, and whose fault it is that it cannot go on."""

from __future__ import annotations

from zbsolve.lowering import Action, Do, Lowered

__all__ = ["blamed", "failed", "told", "waiting_for"]


def told(error: BaseException) -> str:
    """An error in words that begin with its kind; also one that cannot say what it is."""
    try:
        text = str(error).strip()
    except Exception as another:
        text = f"(nothing to read: its __str__ raised {type(another).__name__})"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def waiting_for(action: Action, lowered: Lowered, rank: int) -> str:
    """What a rank does or waits for."""
    if action.do is Do.COMPUTE:
        return f"rank {rank} is in {action.op}"
    message = lowered.messages[action.message]
    if action.do is Do.WAIT:
        return f"rank {rank} waits for {message.tail} from rank {message.sender}"
    if action.do is Do.COMPLETE:
        return f"rank {rank} waits until rank {message.receiver} takes {message.tail}"
    return f"rank {rank} is at the {action.do} of {message}"


def blamed(doing: str, rank: int, failure: str) -> str:
    """What a rank is at, and which rank failed, in one line: the whole story is told where it happened."""
    first, _, more = failure.partition("\n")
    failure = f"{first} ..." if more else first
    if doing.endswith(f"from rank {rank}"):
        return f"{doing}, which failed: {failure}"
    return f"{doing}; {failed(rank, failure)}"


def failed(rank: int, failure: str) -> str:
    """Which rank failed and how; a number below 0 is no rank of this pipeline, and the failure says who it was."""
    return failure if rank < 0 else f"rank {rank} failed: {failure}"
