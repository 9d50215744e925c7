"""Random problems and orders for property tests."""

from __future__ import annotations

import itertools
import random

from hypothesis import strategies as st

from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import HostLink, HostLinkOverride, Link, LinkOverride, Overlap, Profile, StageCost
from zbsolve.timetable import Order


def stage_costs(
    *, largest_ns: int = 20, largest_bytes: int = 8, ends: bool = False, again: bool = False, moved: bool = False
) -> st.SearchStrategy[StageCost]:
    """Costs of every shape: zero durations, W that keeps nothing or more than F held, cheap and dear fused.

    With `ends` some stages have a reduction of gradients, an optimizer, or both; with `again` some say what
    computing the forward again takes, and saves; with `moved` some say how much of it can be moved away.
    """
    ns, size = st.integers(0, largest_ns), st.integers(0, largest_bytes)

    def build(f, b, w, fused, act, keep, work, static, out, reduce, optimizer, recompute, checkpoint, offload):
        return StageCost(
            forward_ns=f + 1,
            backward_input_ns=b,
            backward_weight_ns=w,
            backward_ns=max(b, w, b + w + fused),
            activation_bytes=act,
            backward_weight_bytes=keep,
            workspace_bytes=work,
            static_bytes=static,
            output_bytes=out,
            grad_reduce_ns=reduce,
            optimizer_ns=optimizer,
            recompute_ns=recompute,
            checkpoint_bytes=None if checkpoint is None else min(checkpoint, act),
            offload_bytes=None if offload is None else min(offload, act),
        )

    once = [st.sampled_from([0, 0, 1, 7, 30]) if ends else st.just(0)] * 2
    rerun = [st.none() | amount if again else st.none() for amount in (ns, size)]
    away = st.none() | size if moved else st.none()
    work = st.integers(0, 2)
    return st.builds(build, ns, ns, ns, st.integers(-3, 3), size, size, work, size, size, *once, *rerun, away)


def host_links(ranks: int) -> st.SearchStrategy[HostLink]:
    """Copies from instant to as long as several operations, some ranks apart from the others."""
    latency, rate = st.integers(0, 5), st.none() | st.integers(10**8, 10**10)
    fields = {"latency_ns": latency, "to_host_bytes_per_second": rate, "from_host_bytes_per_second": rate}
    one = st.builds(HostLinkOverride, rank=st.integers(0, ranks - 1), **fields)
    some = st.lists(one, max_size=1).map(tuple)
    return st.builds(HostLink, overrides=some, **fields)


def placements(*, most_ranks: int = 4) -> st.SearchStrategy[Placement]:
    """Every constructor, and explicit lists in which a rank may hold neighbours."""
    ranks = st.integers(1, most_ranks)

    def custom(count: int) -> st.SearchStrategy[Placement]:
        tail = st.lists(st.integers(0, count - 1), max_size=3)
        return st.tuples(st.permutations(range(count)), tail).map(lambda t: Placement.custom([*t[0], *t[1]]))

    return st.one_of(
        ranks.map(Placement.linear),
        st.tuples(ranks, st.integers(1, 3)).map(lambda t: Placement.looped(*t)),
        ranks.map(Placement.v),
        ranks.map(lambda r: Placement.wave(r, 4)),
        ranks.map(Placement.bidirectional),
        ranks.flatmap(custom),
    )


def factors(count: int) -> st.SearchStrategy[tuple[str, ...] | None]:
    """None more often than not; else exact decimals of which many are alike."""
    some = st.tuples(*[st.sampled_from(["1", "0.8", "1.25", "2", "3.333"])] * count)
    return st.one_of(st.none(), st.none(), some)


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


@st.composite
def overlaps_of(draw: st.DrawFn, where: Placement) -> tuple[Overlap, ...]:
    """Some pairs of stages that share a rank, and what they take together: less than one of them, or more than both."""
    pairs = {(a, b) for r in range(where.ranks) for a in where.stages_of(r) for b in where.stages_of(r)}
    chosen = draw(st.lists(st.sampled_from(sorted(pairs)), unique=True, max_size=6))
    ns = st.integers(1, 50)
    return tuple(
        Overlap(
            forward_stage=forward,
            backward_stage=back,
            forward_backward_overlap_ns=draw(ns),
            forward_backward_input_overlap_ns=draw(st.none() | ns),
        )
        for forward, back in chosen
    )


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    placement: st.SearchStrategy[Placement] | None = None,
    most_microbatches: int = 5,
    limits: bool = False,
    objective: str | None = None,
    variants: bool = False,
    recompute: bool = False,
    paired: bool = False,
    offload: bool = False,
    queueing: bool = False,
) -> Problem:
    """Problems on any placement, without a memory limit unless `limits`; with `variants` some are no plain training.

    With `recompute`, or `offload`, all allow it; with `paired` all let operations run together, in any time; with
    `queueing` transfers wait for each other on some links, and all are slow.
    """
    where = draw(placement if placement is not None else placements())
    ends = variants and draw(st.booleans())
    again = recompute or (variants and draw(st.booleans()))
    moved = offload or (variants and draw(st.booleans()))
    costs = stage_costs(ends=ends, again=again, moved=moved)
    stages = tuple(draw(st.lists(costs, min_size=where.stages, max_size=where.stages)))
    pairs = [(a, b) for a in range(where.ranks) for b in range(where.ranks) if a != b]
    special = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=2)) if pairs else []
    bandwidth = st.integers(10**8, 2 * 10**9) if queueing else st.one_of(st.none(), st.integers(10**8, 10**10))
    queue = st.sampled_from(["link", "link", "sender", None]) if queueing else st.none()
    link = Link(
        latency_ns=draw(st.integers(0, 5)),
        bytes_per_second=draw(bandwidth),
        overrides=tuple(
            LinkOverride(
                sender=a,
                receiver=b,
                latency_ns=draw(st.integers(0, 9)),
                bytes_per_second=draw(bandwidth),
                queueing=draw(queue),
            )
            for a, b in special
        ),
        queueing=draw(queue),
    )
    microbatches = draw(st.integers(1, most_microbatches))
    together = not link.queues and (paired or (variants and draw(st.integers(0, 2)) == 0))
    overlaps = draw(overlaps_of(where)) if together else ()
    limit = draw(st.sampled_from(["0.5x", "0.75x", "1x", "1.5x", "2x"])) if limits else None
    return Problem(
        profile=Profile(
            stages=stages,
            link=link,
            overlaps=overlaps,
            host_link=draw(host_links(where.ranks)) if moved else None,
        ),
        placement=where,
        microbatches=microbatches,
        memory_limit=limit,
        objective=objective or draw(st.sampled_from(["period", "makespan"])),
        rank_factors=draw(factors(where.ranks)),
        microbatch_factors=draw(factors(microbatches)),
        allow=frozenset(
            {"split", "fused"}
            | {w for w, may in (("recompute", again), ("offload", moved), ("paired", together)) if may}
        ),
        forward_only=variants and draw(st.integers(0, 4)) == 0,
        slices=draw(st.sampled_from(_divisors(microbatches))) if variants else 1,
    )


def random_order(problem: Problem, seed: int, *, fused: float = 0.3) -> Order:
    """An order that can finish: operations issued at random as soon as what they need is done; no limit is kept."""
    rng = random.Random(seed)
    stages, last = problem.placement.stages, problem.placement.stages - 1
    waiting = []
    for j in range(problem.microbatches):
        for s in range(stages):
            waiting.append(Op(Kind.FORWARD, s, j))
            if problem.forward_only:
                continue
            if rng.random() < fused:
                waiting.append(Op(Kind.BACKWARD, s, j))
            else:
                waiting += [Op(Kind.BACKWARD_INPUT, s, j), Op(Kind.BACKWARD_WEIGHT, s, j)]
            if "recompute" in problem.allow and rng.random() < 0.4:
                waiting.append(Op(Kind.RECOMPUTE, s, j))
            elif "offload" in problem.allow and rng.random() < 0.4:
                waiting += [Op(kind, s, j) for kind in (Kind.OFFLOAD, Kind.RELEASE, Kind.RELOAD)]
    again = {op for op in waiting if op.kind in (Kind.RECOMPUTE, Kind.RELOAD)}
    ends = [(r, op) for r, row in enumerate(problem.operations()) for op in row if op.microbatch is None]
    reduced = {(r, op.stage) for r, op in ends if op.kind is Kind.REDUCE_GRADIENT}
    done: set[object] = set()

    before = {
        Kind.BACKWARD_WEIGHT: Kind.BACKWARD_INPUT,
        Kind.RECOMPUTE: Kind.FORWARD,
        Kind.OFFLOAD: Kind.FORWARD,
        Kind.RELEASE: Kind.OFFLOAD,
        Kind.RELOAD: Kind.RELEASE,
    }

    def needs(op: Op) -> list[Op]:
        if op.kind is Kind.FORWARD:
            earlier = [Op(Kind.FORWARD, op.stage, op.microbatch - 1)] if op.microbatch % problem.slices else []
            return earlier + ([Op(Kind.FORWARD, op.stage - 1, op.microbatch)] if op.stage else [])
        if op.kind in before:
            return [Op(before[op.kind], op.stage, op.microbatch)]
        after = [] if op.stage == last else [Op(Kind.BACKWARD_INPUT, op.stage + 1, op.microbatch)]
        after += again & {Op(kind, op.stage, op.microbatch) for kind in (Kind.RECOMPUTE, Kind.RELOAD)}
        if (op.microbatch + 1) % problem.slices:
            after.append(Op(Kind.BACKWARD_INPUT, op.stage, op.microbatch + 1))
        return [Op(Kind.FORWARD, op.stage, op.microbatch), *after]

    def complete(rank: int, op: Op) -> bool:
        if op.kind is Kind.OPTIMIZER and (rank, op.stage) in reduced:
            # the network runs its reductions in turn, so all that are issued have to get what they wait for
            issued = [o.stage for o in rows[rank] if o.kind is Kind.REDUCE_GRADIENT]
            pairs = itertools.product(issued, range(problem.microbatches))
            return op.stage in issued and all(Op(Kind.BACKWARD_WEIGHT, s, j) in done for s, j in pairs)
        # a reduction may be issued before other ranks have done their part: it waits beside what computes
        own = [j for j in range(problem.microbatches) if problem.rank_of(Op(Kind.FORWARD, op.stage, j)) == rank]
        of = own if op.kind is Kind.REDUCE_GRADIENT and rng.random() < 0.5 else range(problem.microbatches)
        return all(Op(Kind.BACKWARD_WEIGHT, op.stage, j) in done for j in of)

    rows: list[list[Op]] = [[] for _ in range(problem.placement.ranks)]
    while waiting or ends:
        ready: list[tuple[int, Op]] = [(problem.rank_of(op), op) for op in waiting if all(n in done for n in needs(op))]
        ready += [(rank, op) for rank, op in ends if complete(rank, op)]
        if not ready:
            continue
        rank, op = rng.choice(ready)
        if "paired" in problem.allow and op.kind is Kind.FORWARD:
            others = [
                other
                for r, other in ready
                if r == rank
                and other.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)
                and other.microbatch != op.microbatch
            ]
            if others and rng.random() < 0.7:
                beside = rng.choice(others)
                waiting.remove(op)
                waiting.remove(beside)
                op = Op(op.kind, op.stage, op.microbatch, beside)
                waiting.append(op)
        if op.microbatch is None:
            ends.remove((rank, op))
            done.add((rank, op))
        else:
            waiting.remove(op)
            done.update(op.parts)
        rows[rank].append(op)
    return Order(tuple(tuple(row) for row in rows))


def orders(problem: Problem) -> st.SearchStrategy[Order]:
    """Random orders of a problem."""
    return st.integers(0, 2**32).map(lambda seed: random_order(problem, seed))
