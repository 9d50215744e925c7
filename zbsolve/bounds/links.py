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
    - period, too: see `_on_the_way_round`.
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
        return max(*loads, _on_the_way_round(costs, graph))
    return max((a + load + b for a, load, b in zip(before, loads, after, strict=True) if load), default=0)


def _on_the_way_round(costs: Costs, graph: OpGraph) -> int:
    """The most that any rank is busy for, from its first start to its last end, by one link's transfers.

    Notes
    -----
    Forwards that a link takes from one rank: all of them are sent in one iteration, one at a time, by F's that start
    no earlier than the rank's first operation, and of each the gradient comes back to this rank, to a backward that
    ends no later than its last. So the rank's span is no less than the least F, the sum of what the transfers take,
    and the least way from the end of one, over its latency and the loss, through the backward on this rank.

    Gradients that a link brings to one rank, likewise: each was an F on this rank before, and ends in a backward
    there. So the span is no less than the least way from such an F until its gradient is sent, the sum, and the
    least latency and backward after it.

    The period is no less than the span of any rank. Which transfer comes first and which last does not matter: the
    least of each is taken. With forwards alone nothing comes back.

    Own proof.
    """
    if costs.problem.forward_only:
        return 0
    arcs = graph.sends
    tails, heads = graph.arc_tail[arcs], graph.arc_head[arcs]
    columns = (graph.arc_link[arcs], graph.kind[tails], graph.stage[tails], graph.stage[heads], graph.microbatch[tails])
    amounts = (graph.arc_busy_ns[arcs], graph.arc_lag_ns[arcs])
    parts: dict[tuple[int, bool, int], tuple[int, int, int]] = {}
    for link, kind, s, t, j, busy, lag in zip(*(c.tolist() for c in (*columns, *amounts)), strict=True):
        forward = kind == _FORWARD
        if forward:
            ahead = costs.forward_ns[s, j]
            behind = costs.turn_ns[t, j] + costs.gradient_ns[t, j] + costs.up_ns[s, j] + costs.backward_ns[s, j]
        else:
            ahead = costs.turn_ns[t, j] - costs.up_ns[t, j]
            behind = costs.backward_ns[t, j]
        key = link, forward, int(costs.rank[s if forward else t, j])
        before, load, after = parts.get(key, (2**62, 0, 2**62))
        parts[key] = min(before, int(ahead)), load + busy, min(after, lag - busy + int(behind))
    return max((sum(part) for part in parts.values() if part[1]), default=0)
