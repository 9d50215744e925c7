"""Exact times of an order: as soon as possible, or at its least period.

The period of an order is the least T for which its operations have start times with every rank's
last end at most T after its first start. Written as an arc from each rank's last operation back to
its first with lag -T, this asks for the least T at which the graph of precedences, rows and these
arcs has no cycle of positive length: the maximum cycle mean of the longest paths between the
ranks' first and last operations (Reiter, "Scheduling parallel computations", J. ACM 15, 1968).

A *release vector* x holds a first start for each rank. One longest-path pass under x gives each
rank's last end y and the rank whose release it hangs on. ``x <- max(x, y - T)`` is a Bellman-Ford
round over the ranks; a cycle among the "hangs on" ranks is a cycle of the graph, so its mean,
rounded up, is a valid lower bound on T, and T is raised to it. Rounds stop when x stands still:
then T is both attained and necessary. They do stop: the cycles of one pass can all be no longer
than T while ranks push each other on in turn, so each rank also remembers the path that raised it
last, and by Bellman-Ford's theorem these paths close into a cycle longer than T within as many
rounds as there are ranks, if there is one.

A link on which transfers queue repeats as a rank does: in each iteration it serves all its transfers, in
the order of its sender's row, and the next iteration's first follows on this one's last. So it counts
as one more rank, with its transfers for a row, a release of its own and a span that T must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zbsolve.errors import OrderError
from zbsolve.opgraph import Int32, OpGraph
from zbsolve.problem import Problem
from zbsolve.timetable import Order, TimedOp, Timetable

__all__ = ["Timer", "Times", "cycle_mean", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Start and end of every node, in ns, and the value they attain.

    Parameters
    ----------
    start_ns, end_ns
        By node; the least start is 0.
    value_ns
        The period or the makespan.
    release_ns
        First start of each rank.
    """

    start_ns: list[int]
    end_ns: list[int]
    value_ns: int
    release_ns: list[int]


class Timer:
    """Times orders of one graph.

    Parameters
    ----------
    graph
        The operations.
    rows
        Nodes of each rank, in issue order, as `OpGraph.encode` gives them.

    Raises
    ------
    OrderError
        If the rows wait for each other in a circle, so that the order can never finish.
    """

    def __init__(self, graph: OpGraph, rows: Sequence[Int32]) -> None:
        self.graph = graph
        self.rows = [[int(node) for node in row] for row in rows]
        self._duration = graph.duration_ns.tolist()
        tails, lags = graph.arc_tail.tolist(), graph.arc_lag_ns.tolist()
        pointers = graph.pred_ptr.tolist()
        self._steps = self._topological(tails, lags, pointers)
        self._sends, self._arrives = _transfers(graph)
        self._taken = [0] * len(graph.links)
        for link, busy in zip(graph.arc_link.tolist(), graph.arc_busy_ns.tolist(), strict=True):
            if link >= 0:
                self._taken[link] += busy

    def _topological(
        self, tails: list[int], lags: list[int], pointers: list[int]
    ) -> list[tuple[int, int, tuple[tuple[int, int], ...]]]:
        """(node, row predecessor, (tail, lag)...) in an order in which every pass can go."""
        lane_of, lanes = self.graph.lane.tolist(), self.graph.by_lane(self.rows)
        before, beside = self._ahead(lane_of)
        self._refuse_waiting_behind(beside, tails, pointers)
        done = [False] * len(self.graph)
        position = [0] * len(lanes)
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(lanes)))
        steps = []
        while ready:
            lane = ready.pop()
            row, at = lanes[lane], position[lane]
            while at < len(row):
                node = row[at]
                blocker = -1
                kept: list[tuple[int, int]] = []
                for arc in range(pointers[node], pointers[node + 1]):
                    tail = tails[arc]
                    if not done[tail]:
                        blocker = tail
                        break
                    # an arc from the same lane's past binds only through its lag
                    if lane_of[tail] != lane or lags[arc]:
                        kept.append((tail, lags[arc]))
                if blocker < 0 and beside and node in beside and before[node] >= 0 and not done[before[node]]:
                    blocker = before[node]
                if blocker >= 0:
                    waiting.setdefault(blocker, []).append(lane)
                    break
                if beside and beside.get(node, -1) >= 0:
                    kept.append((beside[node], 0))
                steps.append((node, before[node], tuple(kept)))
                done[node] = True
                ready.extend(waiting.pop(node, ()))
                at += 1
            position[lane] = at
        stuck = [lane for lane, row in enumerate(lanes) if position[lane] < len(row)]
        if stuck:
            node = lanes[stuck[0]][position[stuck[0]]]
            raise OrderError(
                f"the order can never finish: rank {self.graph.rank[node]} cannot start {self.graph.op(node)}; "
                "check tells who waits for whom"
            )
        return steps

    def _ahead(self, lane_of: list[int]) -> tuple[list[int], dict[int, int]]:
        """By node the last compute operation ahead of it in its row, -1 if there is none.

        For operations of other lanes also the last of their own lane, -1 if there is none; where no
        compute stands ahead, that of their lane takes its place.
        """
        before, beside = [-1] * len(self.graph), {}
        for rank, row in enumerate(self.rows):
            last: dict[int, int] = {}
            for node in row:
                lane = lane_of[node]
                before[node] = compute = last.get(rank, -1)
                if lane != rank:
                    beside[node] = last.get(lane, -1)
                    if compute < 0:
                        before[node], beside[node] = beside[node], -1
                last[lane] = node
        return before, beside

    def _refuse_waiting_behind(self, beside: dict[int, int], tails: list[int], pointers: list[int]) -> None:
        """On any lane an operation is issued behind what it needs of its own row."""
        rank_of = self.graph.rank.tolist() if beside else []
        place = {node: at for row in self.rows for at, node in enumerate(row)} if beside else {}
        for node in beside:
            for tail in tails[pointers[node] : pointers[node + 1]]:
                if rank_of[tail] == rank_of[node] and place[tail] > place[node]:
                    raise OrderError(
                        f"the order can never finish: rank {rank_of[node]} cannot start {self.graph.op(node)}; "
                        f"it stands ahead of {self.graph.op(tail)}, which it needs"
                    )

    def run(self, release_ns: Sequence[int]) -> tuple[list[int], list[int]]:
        """One longest-path pass: the end of every node, and the rank whose release it hangs on.

        Parameters
        ----------
        release_ns
            No operation of rank r starts before its entry r. Behind them, for each queueing link, before when it
            takes no transfer; such a link counts as a rank further on. Behind the nodes, both lists returned have
            the end of its last transfer.
        """
        if self._taken:
            return self._run_queueing(release_ns)
        end = [0] * len(self.graph)
        source = [0] * len(self.graph)
        duration = self._duration
        rank = self.graph.rank.tolist()
        for node, ahead, arcs in self._steps:
            if ahead >= 0:
                at, hangs = end[ahead], source[ahead]
            else:
                hangs = rank[node]
                at = release_ns[hangs]
            for tail, lag in arcs:
                ready = end[tail] + lag
                if ready > at:
                    at, hangs = ready, source[tail]
            end[node] = at + duration[node]
            source[node] = hangs
        return end, source

    def _run_queueing(self, release_ns: Sequence[int]) -> tuple[list[int], list[int]]:
        """The same where transfers wait for their link: served as they are sent, for steps keep to the rows."""
        nodes, ranks = len(self.graph), len(self.rows)
        end, source = [0] * (nodes + len(self._taken)), [0] * (nodes + len(self._taken))
        for link in range(len(self._taken)):
            end[nodes + link] = release_ns[ranks + link]
            source[nodes + link] = ranks + link
        arrival: dict[int, tuple[int, int]] = {}
        duration, rank = self._duration, self.graph.rank.tolist()
        for node, ahead, arcs in self._steps:
            if ahead >= 0:
                at, hangs = end[ahead], source[ahead]
            else:
                hangs = rank[node]
                at = release_ns[hangs]
            for tail, lag in arcs:
                ready = end[tail] + lag
                if ready > at:
                    at, hangs = ready, source[tail]
            for arc in self._arrives.get(node, ()):
                ready, origin = arrival[arc]
                if ready > at:
                    at, hangs = ready, origin
            end[node] = at + duration[node]
            source[node] = hangs
            for arc, link, busy, latency in self._sends.get(node, ()):
                if end[node] > end[nodes + link]:
                    end[nodes + link], source[nodes + link] = end[node], hangs
                end[nodes + link] += busy
                arrival[arc] = end[nodes + link] + latency, source[nodes + link]
        return end, source

    def makespan(self) -> Times:
        """As-soon-as-possible times; the value is the makespan."""
        end, _ = self.run([0] * (len(self.rows) + len(self._taken)))
        return self._times(end, None)

    def period(self) -> Times:
        """Times that attain the least period, rounded up to a whole ns."""
        # the last of a row computes: what runs on another lane is followed by what needs it
        last_node = {r: row[-1] for r, row in enumerate(self.rows) if row}
        # a link repeats as a rank does: its next first transfer follows on its last
        last_node |= {len(self.rows) + k: len(self.graph) + k for k, taken in enumerate(self._taken) if taken}
        release = [0] * (len(self.rows) + len(self._taken))
        value = max((sum(self._duration[n] for n in row) for row in self.graph.by_lane(self.rows)), default=0)
        value = max(value, *self._taken, 0)
        raised: dict[int, tuple[int, int]] = {}
        while True:
            end, source = self.run(release)
            last = {r: end[node] for r, node in last_node.items()}
            hangs = {r: (source[node], last[r] - release[source[node]]) for r, node in last_node.items()}
            mean = cycle_mean(hangs)
            if mean > value:
                value, raised = mean, {}
            later = list(release)
            for r, ended in last.items():
                if ended - value > release[r]:
                    later[r], raised[r] = ended - value, hangs[r]
            if later == release:
                return self._times(end, value)
            mean = cycle_mean(raised)
            if mean > value:
                value, raised = mean, {}
            else:
                release = later

    def _times(self, end: list[int], value: int | None) -> Times:
        end = end[: len(self.graph)]
        start = [e - d for e, d in zip(end, self._duration, strict=True)]
        first = min(start, default=0)
        start = [s - first for s in start]
        end = [e - first for e in end]
        span = max(end, default=0) if value is None else value
        release = [min((start[node] for node in row), default=0) for row in self.rows]
        return Times(start_ns=start, end_ns=end, value_ns=span, release_ns=release)


def _transfers(graph: OpGraph) -> tuple[dict[int, list[tuple[int, int, int, int]]], dict[int, list[int]]]:
    """By node what it sends over queueing links, as (arc, link, time on it, latency); by node the arcs it waits for."""
    sends: dict[int, list[tuple[int, int, int, int]]] = {}
    arrives: dict[int, list[int]] = {}
    for arc in graph.sends.tolist():
        busy = int(graph.arc_busy_ns[arc])
        sent = (arc, int(graph.arc_link[arc]), busy, int(graph.arc_lag_ns[arc]) - busy)
        sends.setdefault(int(graph.arc_tail[arc]), []).append(sent)
        arrives.setdefault(int(graph.arc_head[arc]), []).append(arc)
    return sends, arrives


def cycle_mean(path_to: dict[int, tuple[int, int]]) -> int:
    """The greatest mean, rounded up, of the cycles among (rank it comes from, length), one a rank."""
    best = 0
    seen: dict[int, int] = {}
    for root in path_to:
        path: list[int] = []
        rank = root
        while rank in path_to and rank not in seen:
            seen[rank] = root
            path.append(rank)
            rank = path_to[rank][0]
        if seen.get(rank) == root:
            cycle = path[path.index(rank) :]
            best = max(best, -(-sum(path_to[r][1] for r in cycle) // len(cycle)))
    return best


def simulate(problem: Problem, order: Order) -> Timetable:
    """Time an order exactly, for the problem's objective.

    Parameters
    ----------
    problem
        What was asked.
    order
        One row a rank; which operations stand in it decides what is split or fused.

    Returns
    -------
    Timetable
        Attains the order's least period, or its makespan.

    Raises
    ------
    OrderError
        If the rows are no order of the problem or can never finish.
    """
    graph = OpGraph.build(problem, order.rows)
    timer = Timer(graph, graph.encode(order))
    times = timer.period() if problem.objective == "period" else timer.makespan()
    rows = tuple(
        tuple(TimedOp(op, times.start_ns[node], times.end_ns[node]) for op, node in zip(row, nodes, strict=True))
        for row, nodes in zip(order.rows, timer.rows, strict=True)
    )
    return Timetable(problem=problem, rows=rows)
