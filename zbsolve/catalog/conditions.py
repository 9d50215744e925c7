"""The conditions that schedules share: where the stages lie, and that B and W may stand apart.

Each `require_...` gives what the schedule goes on with, or says what is wrong and what to do. Ranks
may be numbered in any way; what counts is the shape of the route.
"""

from __future__ import annotations

from zbsolve.errors import ScheduleConditionError
from zbsolve.problem import Problem

__all__ = [
    "require_backwards",
    "require_bidirectional",
    "require_looped",
    "require_one_stage_a_rank",
    "require_slices",
    "require_split",
    "require_v",
    "require_wave",
    "require_whole_sequences",
]


def require_backwards(problem: Problem, name: str) -> None:
    """Check that there are backwards to place.

    Raises
    ------
    ScheduleConditionError
        If the problem runs forwards only.
    """
    if problem.forward_only:
        raise ScheduleConditionError(f"{name} is for training, but the problem runs forwards only; use forward-only")


def require_whole_sequences(problem: Problem, name: str) -> None:
    """Check that microbatches have nothing to do with each other.

    Raises
    ------
    ScheduleConditionError
        If they are slices of sequences.
    """
    if problem.slices > 1:
        raise ScheduleConditionError(
            f"{name} runs backwards in an order that slices of a sequence cannot (the last slice's comes first), and "
            f"every {problem.slices} microbatches are slices of one; use slices=1, or seq-1f1b, gpipe, naive"
        )


def require_slices(problem: Problem, name: str) -> None:
    """Check that sequences are cut into slices.

    Raises
    ------
    ScheduleConditionError
        If they are whole.
    """
    if problem.slices == 1:
        raise ScheduleConditionError(
            f"{name} is for sequences in slices, but each microbatch is whole; say how many make a sequence "
            "(slices=k, on the command line --slices), or use 1f1b"
        )


def require_split(problem: Problem, name: str) -> None:
    """Check that B and W may stand apart.

    Raises
    ------
    ScheduleConditionError
        If the problem allows the fused backward only, or runs forwards only.
    """
    require_backwards(problem, name)
    if "split" not in problem.allow:
        raise ScheduleConditionError(
            f"{name} lives on B and W being apart, but the problem allows fused backwards only; "
            "allow 'split', or use a schedule with whole backwards: gpipe, 1f1b, naive"
        )


def require_one_stage_a_rank(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the rank of every stage if each rank holds exactly one, for all microbatches.

    Raises
    ------
    ScheduleConditionError
        If a rank holds several stages, or microbatches take different routes.
    """
    placement = problem.placement
    for rank in range(placement.ranks):
        held = placement.stages_of(rank)
        if len(held) > 1:
            raise ScheduleConditionError(
                f"{name} is for one stage a rank, but rank {rank} holds stages {', '.join(map(str, held))} "
                f"(placement {placement.name}); use one stage a rank, or a schedule for any placement: naive, gpipe"
            )
    return _one_way(problem, name)


def require_looped(problem: Problem, name: str, *, whole: bool = True) -> tuple[tuple[int, ...], int]:
    """Return the ranks in the order of a lap, and how many stages each holds, for a looped placement.

    Parameters
    ----------
    whole
        Whether every rank must hold as many stages as the others; without it the last lap may end early.

    Raises
    ------
    ScheduleConditionError
        If the ranks do not come round in laps, or each holds one stage only.
    """
    route = _one_way(problem, name)
    ranks = problem.placement.ranks
    if len(route) == ranks:
        raise ScheduleConditionError(
            f"{name} is for several stages a rank, but each holds one; split them into chunks (placement looped), "
            "or use a schedule for one stage a rank, such as 1f1b"
        )
    lap = route[:ranks]
    if len(set(lap)) < ranks or any(rank != lap[s % ranks] for s, rank in enumerate(route)):
        raise _misshapen(problem, name, "looped", "in which the stages go round the ranks in laps")
    if whole and len(route) % ranks:
        raise ScheduleConditionError(
            f"{name} needs the same number of stages on every rank, but {len(route)} stages lie on {ranks} ranks; "
            "use looped-bfs, which does not"
        )
    return lap, -(-len(route) // ranks)


def require_v(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the ranks from the top of a V to its turn: rank i of them holds stages i and 2p - 1 - i.

    Raises
    ------
    ScheduleConditionError
        If the placement is no V.
    """
    route = _one_way(problem, name)
    ranks = problem.placement.ranks
    down = route[:ranks]
    if len(set(down)) < ranks or route != down + down[::-1]:
        raise _misshapen(problem, name, "v", "in which the stages go down the ranks and back up, two on each")
    return down


def require_wave(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the ranks from the top of a wave to its turn; it runs down and up any number of times.

    Raises
    ------
    ScheduleConditionError
        If the placement is no wave.
    """
    route = _one_way(problem, name)
    ranks = problem.placement.ranks
    down = route[:ranks]
    if len(set(down)) < ranks or len(route) % (2 * ranks) or route != (down + down[::-1]) * (len(route) // (2 * ranks)):
        raise _misshapen(
            problem, name, "wave", "in which the stages go down and up the ranks, an even number on each rank"
        )
    return down


def require_bidirectional(problem: Problem, name: str) -> tuple[int, ...]:
    """Return the rank of every stage on the first of two routes in opposite directions.

    Raises
    ------
    ScheduleConditionError
        If there are no such two routes, or the number of ranks is odd.
    """
    placement = problem.placement
    down = placement.routes[0]
    if len(set(down)) < len(down) or placement.routes != (down, down[::-1]):
        raise _misshapen(
            problem, name, "bidirectional", "in which two routes run in opposite directions, one stage of each a rank"
        )
    if len(down) % 2:
        raise ScheduleConditionError(
            f"{name} needs an even number of ranks, so that its two directions take turns; there are {len(down)}"
        )
    return down


def _one_way(problem: Problem, name: str) -> tuple[int, ...]:
    placement = problem.placement
    if any(other != placement.routes[0] for other in placement.routes):
        raise ScheduleConditionError(
            f"{name} sends all microbatches one way, but the placement has {len(placement.routes)} routes; "
            "use a placement with one, or a schedule for any placement: naive, gpipe"
        )
    return placement.routes[0]


def _misshapen(problem: Problem, name: str, wanted: str, which: str) -> ScheduleConditionError:
    placement = problem.placement
    return ScheduleConditionError(
        f"{name} is for placement {wanted}, {which}, but {placement.stages} stages lie on {placement.ranks} ranks "
        f"as placement {placement.name}; use placement {wanted}, or a schedule for any placement: naive, gpipe"
    )
