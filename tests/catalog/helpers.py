"""Problems with several stages a rank, and what a schedule makes of them."""

from __future__ import annotations

from zbsolve.catalog import baseline
from zbsolve.metrics import metrics
from zbsolve.problem import Problem
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate


def uniform(placement, microbatches, forward=1, backward=1, weight=1, latency=0, **options):
    """Equal stages; one microbatch holds 2 bytes on each, 1 between B and W."""
    profile = Profile.uniform(
        placement.stages,
        forward_ns=forward,
        backward_input_ns=backward,
        backward_weight_ns=weight,
        activation_bytes=2,
        backward_weight_bytes=1,
        latency_ns=latency,
    )
    return Problem(profile=profile, placement=placement, microbatches=microbatches, **options)


def uniform_for(name, *args, **options):
    """`uniform`, of forwards only, or with recomputation allowed, where the schedule is for that."""
    if name == "gpipe-recompute":
        options.setdefault("allow", frozenset({"split", "fused", "recompute"}))
    if name.startswith("seq-"):
        _, microbatches, *_ = args
        options.setdefault("slices", next(k for k in (2, 3, microbatches) if microbatches % k == 0))
    return uniform(*args, forward_only=name == "forward-only", **options)


def chunked(instance, placement, limit=None):
    """The instance with each rank's stage cut into equal chunks; times and bytes are multiplied by their number."""
    stages = tuple(StageCost(**instance["profile"]["stages"][rank]) for rank in placement.routes[0])
    chunks = placement.stages // placement.ranks
    link = Link(latency_ns=chunks * instance["profile"]["link"]["latency_ns"])
    return Problem(
        profile=Profile(stages=stages, link=link),
        placement=placement,
        microbatches=instance["microbatches"],
        memory_limit=limit,
    )


def figures(name, problem):
    return metrics(simulate(problem, baseline(name, problem)))


def work_ns(problem):
    """What each rank has to do on equal stages with as many a rank."""
    stage, held = problem.profile.stages[0], sum(len(route) for route in problem.placement.routes)
    each = stage.forward_ns + stage.backward_input_ns + stage.backward_weight_ns
    return problem.microbatches * each * held // problem.placement.ranks // len(problem.placement.routes)


def bubble_ns(name, problem):
    """What the period has beyond the work of a rank, on equal stages."""
    return figures(name, problem).period_ns - work_ns(problem)


def peak_times(problem, peaks):
    """The largest peak, as a multiple of ranks x what a microbatch holds on the rank."""
    placement = problem.placement
    held = [
        sum(problem.profile.stages[s].activation_bytes for s in placement.stages_of(rank))
        for rank in range(placement.ranks)
    ]
    return max(peak / (placement.ranks * whole) for peak, whole in zip(peaks, held, strict=True))


def picture(name, problem, width=3):
    """One line a rank: every operation as long as it takes; stages beyond the first p in small letters."""
    lines = []
    for row in simulate(problem, baseline(name, problem)).rows:
        line = ""
        for timed in row:
            op = timed.op
            letter = op.kind.letter if op.stage < problem.placement.ranks else op.kind.letter.lower()
            line = line.ljust(width * timed.start_ns) + f"{letter}{op.microbatch}"
        lines.append(line)
    return lines
