"""An explanation as fields for JSON and as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from zbsolve.cli._figures import grid, metrics_fields, problem_fields, table
from zbsolve.cli._text import inert
from zbsolve.units import counted, format_ns

if TYPE_CHECKING:
    from rich.console import RenderableType

    from zbsolve.analysis.explain import Explanation
    from zbsolve.analysis.idle import Idle
    from zbsolve.analysis.whatif import WhatIf

__all__ = ["explanation_fields", "explanation_tables"]

MOST_LINES = 16


def explanation_fields(told: Explanation) -> dict[str, object]:
    """All of it."""
    network, problem = told.network, told.network.timetable.problem
    bound = told.proof.bound
    return {
        "value_ns": network.value_ns,
        **metrics_fields(problem, told.metrics),
        **problem_fields(problem),
        "bound": {
            "name": bound and bound.name,
            "lower_bound_ns": bound and bound.value_ns,
            "gap": told.proof.gap,
            "recorded": told.proof.recorded,
            "meaning": told.proof.meaning,
        },
        "idle_ns": sum(told.causes.values()),
        "causes": {cause.value: ns for cause, ns in told.causes.items()},
        "bubbles": [
            {
                "rank": bubble.pieces[0].rank,
                "start_ns": bubble.pieces[0].start_ns,
                "end_ns": bubble.pieces[-1].end_ns,
                "text": bubble.text,
                "pieces": [_piece(told, piece) for piece in bubble.pieces],
            }
            for bubble in told.bubbles
        ],
        "critical": {
            "length_ns": told.path.length_ns,
            "iterations": told.path.iterations,
            "text": list(told.path_text),
            "steps": [
                {**_op(told, step.node), "via": step.via, "lag_ns": step.lag_ns, "slack_ns": told.slack_ns[step.node]}
                for step in told.path.steps
            ],
        },
        "phases": [
            {
                "rank": phase.rank,
                "phase": phase.name,
                "start_ns": phase.start_ns,
                "end_ns": phase.end_ns,
                "operations": {kind.value: count for kind, count in phase.counts.items()},
                "compute_ns": phase.compute_ns,
                "idle_ns": phase.idle_ns,
            }
            for phase in told.phases
        ],
        "what_if": [
            {
                "change": answer.change,
                "solved_again": True,
                "value_ns": answer.value_ns,
                "lower_bound_ns": answer.lower_bound_ns,
                "status": answer.status,
                "gain_ns": answer.gain_ns,
            }
            for answer in told.what_if
        ],
    }


def _op(told: Explanation, node: int) -> dict[str, object]:
    op = told.network.op(node)
    fields: dict[str, object] = {
        "rank": told.network.rank(node),
        "kind": op.kind.value,
        "stage": op.stage,
        "microbatch": op.microbatch,
    }
    if told.network.transfer(node) is not None:
        fields["link"] = told.network.link(node)
    return fields


def _piece(told: Explanation, piece: Idle) -> dict[str, object]:
    nodes = {"before": piece.before, "waits_for": piece.waits_for, "ready": piece.ready}
    return {
        "start_ns": piece.start_ns,
        "end_ns": piece.end_ns,
        "cause": piece.cause.value,
        "next_iteration": piece.wraps,
        **{name: None if node is None else _op(told, node) for name, node in nodes.items()},
    }


def explanation_tables(told: Explanation, *, most_ranks: int) -> Iterator[RenderableType]:
    """What people read, from the whole to the details."""
    yield grid(_summary(told))
    yield _causes(told)
    yield _phases(told, most_ranks)
    yield from _lines(_path_title(told), told.path_text, MOST_LINES)
    if told.bubbles:
        yield from _lines("the largest bubbles", [bubble.text for bubble in told.bubbles], len(told.bubbles))
    if told.what_if:
        yield _what_if(told.what_if)
        yield "found by solving again: gain against the best as it is; bound = what it cannot get below"


def _summary(told: Explanation) -> list[tuple[str, str]]:
    network, proof = told.network, told.proof
    problem = network.timetable.problem
    rows: list[tuple[str, str]] = [(problem.objective, f"{format_ns(network.value_ns)} ({network.value_ns} ns)")]
    if proof.bound is None:
        rows.append(("bound", f"none: {proof.meaning}"))
    else:
        gap = "" if proof.gap is None else f", gap {proof.gap:.2%}"
        where = "as recorded in the file" if proof.recorded else "proven now"
        rows.append(("bound", f"{format_ns(proof.bound.value_ns)} by {proof.bound.name}, {where}{gap}"))
        rows.append(("which says", proof.meaning))
    rows.append(("bubble", f"{told.metrics.bubble:.4f} = {told.metrics.bubble_formula}"))
    return rows


def _causes(told: Explanation) -> RenderableType:
    from zbsolve.analysis.words import MEANING

    total = sum(told.causes.values())
    made = table("idle time by cause", "over all ranks", "share")
    made.add_column("meaning", justify="left")
    for cause, ns in told.causes.items():
        made.add_row(cause.value, format_ns(ns), f"{ns / total:.1%}", MEANING[cause])
    made.add_row("all", format_ns(total), "", "")
    return made


def _phases(told: Explanation, most_ranks: int) -> RenderableType:
    made = table("rank", "phase", "from", "to", "operations", "compute", "idle")
    ranks = told.network.ranks
    for phase in told.phases:
        if phase.rank >= most_ranks:
            break
        operations = " ".join(f"{count}{kind.letter}" for kind, count in phase.counts.items())
        times = (format_ns(ns) for ns in (phase.start_ns, phase.end_ns))
        spent = (format_ns(ns) for ns in (phase.compute_ns, phase.idle_ns))
        made.add_row(str(phase.rank), phase.name, *times, operations, *spent)
    if ranks > most_ranks:
        made.caption = f"and {counted(ranks - most_ranks, 'more rank')}; --json has them all"
    return made


def _path_title(told: Explanation) -> str:
    path = told.path
    if not told.network.by_period:
        return f"critical path, {format_ns(path.length_ns)}"
    over = "" if path.iterations == 1 else f" over {path.iterations} iterations"
    return f"critical cycle, {format_ns(path.length_ns)}{over}: it begins again when it ends"


def _lines(title: str, lines: Sequence[str], most: int) -> Iterator[str]:
    yield inert(title)
    for line in lines[:most]:
        yield f"  {inert(line)}"
    if len(lines) > most:
        yield f"  ... and {counted(len(lines) - most, 'more line')}; --json has them all"
    yield ""


def _what_if(answers: Sequence[WhatIf]) -> RenderableType:
    made = table("what if", "best found", "gain", "bound", "proven best")
    for answer in answers:
        if answer.value_ns is None or answer.lower_bound_ns is None or answer.gain_ns is None:
            made.add_row(inert(answer.change), "nothing in time", "", "", "")
            continue
        share = answer.gain_ns / (answer.value_ns + answer.gain_ns) if answer.gain_ns else 0.0
        gain = f"{format_ns(answer.gain_ns)} ({share:.2%})"
        proven = "yes" if answer.status == "optimal" else "no"
        made.add_row(inert(answer.change), format_ns(answer.value_ns), gain, format_ns(answer.lower_bound_ns), proven)
    return made
