"""Why a timetable takes as long as it does, in one answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zbsolve.analysis.critical import CriticalPath, critical_path
from zbsolve.analysis.idle import Cause, Idle, by_cause, idle_times
from zbsolve.analysis.longest import longest
from zbsolve.analysis.network import Network
from zbsolve.analysis.phases import Phase, phases
from zbsolve.analysis.proof import Proof, proof
from zbsolve.analysis.slack import slacks
from zbsolve.analysis.whatif import Effort, WhatIf, ask, questions
from zbsolve.analysis.words import Bubble, bubbles, path_in_words
from zbsolve.metrics import metrics
from zbsolve.solution import Bound, Metrics
from zbsolve.timetable import Timetable

if TYPE_CHECKING:
    from zbsolve.solver import Progress

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Explanation:
    """Everything there is to say.

    Parameters
    ----------
    network
        The timetable that is explained; nodes below are its.
    metrics
        Of its order.
    phases
        Warm-up, steady state and cool-down of each rank.
    path, path_text
        The critical path or cycle, and one line a stretch of it.
    slack_ns
        By node: how much longer it may take without the value growing.
    idle
        All idle time with its causes.
    causes
        The ns of each cause, over all ranks.
    bubbles
        The longest, told.
    proof
        Which bound holds the timetable back.
    what_if
        What changes would gain, by solving again; empty where that was not asked for.
    """

    network: Network
    metrics: Metrics
    phases: tuple[Phase, ...]
    path: CriticalPath
    path_text: tuple[str, ...]
    slack_ns: tuple[int, ...]
    idle: tuple[Idle, ...]
    causes: dict[Cause, int]
    bubbles: tuple[Bubble, ...]
    proof: Proof
    what_if: tuple[WhatIf, ...]


def explain(
    timetable: Timetable,
    *,
    recorded: Bound | None = None,
    most_bubbles: int = 20,
    what_if: Effort | None = None,
    on_progress: Callable[[str, Progress], None] | None = None,
) -> Explanation:
    """Explain a sound timetable at its planned times.

    Parameters
    ----------
    timetable
        As `check` accepts it.
    recorded
        A bound that its solver proved, if there is one.
    most_bubbles
        How many of the longest bubbles to put in words.
    what_if
        How hard to search for what changes would gain; None solves nothing.
    on_progress
        Told each question and what the solver found for it.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    network = Network.of(timetable)
    paths = longest(network)
    path = critical_path(network, paths)
    pieces = idle_times(network)
    return Explanation(
        network=network,
        metrics=metrics(timetable),
        phases=phases(network, pieces),
        path=path,
        path_text=path_in_words(network, path),
        slack_ns=slacks(network, paths),
        idle=pieces,
        causes=by_cause(pieces),
        bubbles=bubbles(network, pieces, most=most_bubbles),
        proof=proof(network, recorded),
        what_if=ask(network, questions(network, path), what_if, on_progress) if what_if is not None else (),
    )
