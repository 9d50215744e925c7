"""Which bound holds a timetable back, and what that means."""

from __future__ import annotations

from dataclasses import dataclass

from zbsolve.analysis.network import Network
from zbsolve.bounds import lower_bounds
from zbsolve.errors import Infeasible
from zbsolve.solution import Bound

__all__ = ["Proof", "proof"]

_WORDS = {
    "load": "every rank must do its work, and {rank} has the most",
    "chain": "one microbatch has to go all the way down and back",
    "head-tail": "{rank} has the most work between what comes before its first operation and what follows its last",
    "link-load": "a link has to carry all its transfers, one after the other",
    "two-phase": "before the first gradient returns and after the last forward a rank has too little to do",
    "recompute": "memory cannot keep all that forwards make, and computing it again takes time",
    "memory-time": "microbatches hold memory for a time; more of that does not fit under the limit",
    "relay": "a later rank does its work within the span of an earlier one",
    "counting": "rank by rank, no count of forwards and backwards can be reached sooner",
    "rank-subset": "the constraint solver refutes anything below, even with some ranks left out",
    "quantised": "the constraint solver refutes anything below, even with all times rounded down",
    "windows": "in a tight memory, stretches of microbatches need this long wherever they are cut",
    "CP-SAT": "the constraint solver refutes anything below",
}


@dataclass(frozen=True, slots=True)
class Proof:
    """The best bound known.

    Parameters
    ----------
    bound
        Value and name; None where nothing can fit the limit.
    recorded
        Whether it stands in the file of the timetable, from a solver's own proof; else it was computed here.
    gap
        value / bound - 1; None without a bound above 0.
    meaning
        What the bound argues with.
    """

    bound: Bound | None
    recorded: bool
    gap: float | None
    meaning: str


def proof(network: Network, recorded: Bound | None = None) -> Proof:
    """Take the better of a recorded bound and those that need no search; the former where they are equal.

    Parameters
    ----------
    network
        Of the timetable.
    recorded
        From the file of the timetable, where it has one for this very problem.
    """
    try:
        computed = lower_bounds(network.timetable.problem)[0]
    except Infeasible:
        return Proof(None, False, None, "nothing fits the memory limit")
    from_file = recorded is not None and recorded.value_ns >= computed.value_ns
    bound = recorded if from_file and recorded is not None else computed
    gap = network.value_ns / bound.value_ns - 1 if bound.value_ns else None
    return Proof(bound, from_file, gap, _meaning(network, bound))


def _meaning(network: Network, bound: Bound) -> str:
    words = _WORDS.get(bound.name.partition("[")[0].split(" ")[0], f"proven by {bound.name}")
    work = [sum(network.end(n) - network.start(n) for n in network.compute_row(rank)) for rank in range(network.ranks)]
    most = [rank for rank, total in enumerate(work) if total == max(work)]
    told = "all alike" if len(most) == len(work) > 1 else f"rank {most[0]}"
    return words.format(rank=told).replace("and all alike has the most", "all have the same")
