"""The bound of links on which transfers queue: a link must carry what it is given, one transfer at a time.

All other bounds hold where transfers queue as they stand: a transfer never takes less than its lag.
"""

from __future__ import annotations

from zbsolve.bounds.costs import Costs
from zbsolve.opgraph import KINDS, OpGraph
from zbsolve.opgraph.links import links_of
from zbsolve.ops import Kind

__all__ = ["link_load"]

_FORWARD = KINDS.index(Kind.FORWARD)


def link_load(costs: Costs) -> int:
    """The most that any link has to carry; 0 where none queues.

    Notes
    -----
    A link serves one transfer at a time, and each of its transfers once an iteration, so the sum of what they
    take lies between the start of its first and the end of its last.

    - period: the next iteration's first transfer starts after this one's last has left the link, which
      is a period later than this one's first: the period is no less than the sum.
    - makespan: before the first one comes the way down to its sender (and, for a gradient, on to the loss and
      back), and its sender's own operation; after the last one its latency, the operation that needs it, and what
      must follow that in the same microbatch. The least of each over the link's transfers, and the sum between.

    Own proof.
    """
    if not links_of(costs.problem):
        return 0
    graph = OpGraph.build(costs.problem)
    arcs = graph.sends
    tails, heads = graph.arc_tail[arcs], graph.arc_head[arcs]
    loads = [0] * len(graph.links)
    before, after = [2**62] * len(loads), [2**62] * len(loads)
    columns = (graph.arc_link[arcs], graph.kind[tails], graph.stage[tails], graph.stage[heads], graph.microbatch[tails])
    amounts = (graph.arc_busy_ns[arcs], graph.arc_lag_ns[arcs])
    for link, kind, s, t, j, busy, lag in zip(*(c.tolist() for c in (*columns, *amounts)), strict=True):
        loads[link] += busy
        if kind == _FORWARD:
            ahead = costs.head_ns[s, j] + costs.forward_ns[s, j]
            behind = costs.turn_ns[t, j] + costs.finish_ns[t, j]
        else:
            ahead = costs.head_ns[s, j] + costs.turn_ns[s, j] + costs.gradient_ns[s, j]
            behind = costs.finish_ns[t, j]
        before[link] = min(before[link], int(ahead))
        after[link] = min(after[link], lag - busy + int(behind))
    if costs.problem.objective == "period":
        return max(loads)
    return max((a + load + b for a, load, b in zip(before, loads, after, strict=True) if load), default=0)
