"""A list scheduler: commit, again and again, the operation that can start first.

The clock of the whole pipeline decides: of all ranks' candidates the one with the smallest
``max(rank free, data ready) + penalty + noise`` is committed. A penalty is lookahead: a weight
gradient with penalty d starts only if no other operation anywhere could start within the next d,
so an input that is about to arrive is not kept waiting. Forwards are admitted by a limit on how
many may be in flight and by memory. Twins run in microbatch order.

Why it never stands still under any limit that holds one microbatch: a forward is admitted only if
memory still leaves room for the oldest unfinished microbatch of its rank to run to its end once
the weight gradients that can run have run. The oldest unfinished microbatch of the whole pipeline
is the oldest on every rank where it is unfinished, so it can always go on. Of sequences in slices the same
holds of whole sequences: the first backward of one comes after the forwards of all its slices.

These are kernels, as in `zbsolve.solver.state`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zbsolve.solver.network import (
    BASE,
    CLASS_PTR,
    LIMIT,
    LINKS,
    MATE,
    MEMBER,
    MESSAGE_LATENCY,
    NEED,
    NEED_LAG,
    NEED_MESSAGE,
    NEED_PTR,
    NET_CHANGE,
    NET_DURATION,
    NET_START,
    OF_RANK,
    OF_RANK_PTR,
    OUT,
    OUT_PTR,
    PARTNER,
    RANK,
    SHAPE,
    SLICES,
    Row,
    Table,
)
from zbsolve.solver.queueing import send
from zbsolve.solver.state import (
    AFTER,
    BEFORE,
    DUE,
    END,
    FREE,
    FUSED,
    HANGS,
    LEVEL,
    MARK,
    OFF,
    ORIGIN,
    PART,
    PATH_FROM,
    PATH_LENGTH,
    PLACE,
    RAISED_FROM,
    RAISED_LENGTH,
    REST,
    SAVED,
    SEEN,
    SEQUENCE,
    draw,
)

__all__ = ["NEVER", "new_rule"]

NEVER = 2**61
"""As a limit on forwards in flight: none. As a key: nothing to offer."""

PENALTY, IN_FLIGHT, TASTE = range(3)
"""Rows of a rule: by class ns; by class the most forwards ahead of their input gradients; single numbers."""

NOISE, URGENT = range(2)
"""Places in TASTE: standard deviation, in ns, of what is added at random to each priority; 1 to drop the penalty
of weight gradients on a rank where memory holds something else up."""


def new_rule(net: Table, penalty: list[float], in_flight: list[int], noise: float, urgent: bool) -> Table:
    """What a list scheduler prefers, of the kind that the network has."""
    rule: Any = np.zeros((3, max(2, len(penalty))), dtype=np.int64)
    rule[PENALTY][: len(penalty)] = np.asarray(penalty, dtype=float).round()
    rule[IN_FLIGHT][: len(penalty)] = [max(1, a) for a in in_flight]
    rule[TASTE][:2] = round(noise), urgent
    made: Table = rule.tolist() if isinstance(net, list) else rule
    return made


def see_through(net: Table, st: Table, in_flight: Row) -> None:
    """Lower the limits to what memory can see through where each rank has one chunk and microbatches are alike."""
    ranks = net[SHAPE][1]
    spare, held, forward = st[PATH_FROM], st[PATH_LENGTH], st[SEEN]
    for r in range(ranks):
        spare[r] = 0
        held[r] = 0
        forward[r] = -1
    for c in range(net[SHAPE][2]):
        for at in range(net[CLASS_PTR][c], net[CLASS_PTR][c + 1]):
            node = net[MEMBER][at]
            r = net[RANK][node]
            form = 2 * node + st[FUSED][node]
            taken = net[NET_START][form]
            if net[PARTNER][c] >= 0:
                forward[r] = c
                held[r] = net[NET_CHANGE][form]
                taken -= held[r]
            spare[r] = max(spare[r], taken)
    for r in range(ranks):
        if forward[r] >= 0 and held[r] > 0:
            most = max(0, net[LIMIT][r] - net[BASE][r] - spare[r]) // held[r]
            in_flight[forward[r]] = min(in_flight[forward[r]], most)


def survey(net: Table, st: Table) -> None:
    """By rank and sequence (or whole microbatch): bytes once all forwards have run, bytes beyond, operations to go."""
    ranks, slices = net[SHAPE][1], net[SHAPE][SLICES]
    microbatches = net[SHAPE][3] // slices
    held, full, extra, left = st[BEFORE], st[AFTER], st[PART], st[REST]
    oldest, newest = st[RAISED_FROM], st[RAISED_LENGTH]
    for k in range(ranks * microbatches):
        held[k] = 0
        full[k] = 0
        extra[k] = 0
        left[k] = 0
    for r in range(ranks):
        oldest[r] = 0
        newest[r] = 0
    parts = net[SHAPE][5]
    for node in range(2 * parts):
        k = net[RANK][node] * microbatches + node % net[SHAPE][3] // slices
        form = 2 * node + st[FUSED][node]
        gain = net[NET_CHANGE][form] if node < parts else 0
        left[k] += 1
        full[k] += gain
        extra[k] = max(extra[k], net[NET_START][form] - gain)
    for r in range(ranks):
        while oldest[r] < microbatches and left[r * microbatches + oldest[r]] == 0:
            oldest[r] += 1


def admits(net: Table, st: Table, node: int) -> bool:
    """Whether after a forward every sequence in flight on its rank can still end, one after the other."""
    microbatches = net[SHAPE][3] // net[SHAPE][SLICES]
    held, full, extra = st[BEFORE], st[AFTER], st[PART]
    r = net[RANK][node]
    asked = node % net[SHAPE][3] // net[SHAPE][SLICES]
    oldest = st[RAISED_FROM][r]
    if asked == oldest:
        return True
    room = net[LIMIT][r] - net[BASE][r]
    gain = net[NET_CHANGE][2 * node]
    behind = 0
    for j in range(max(asked, st[RAISED_LENGTH][r]), oldest - 1, -1):
        k = r * microbatches + j
        if j in (oldest, asked) or held[k] > 0:
            if behind + full[k] + extra[k] > room:
                return False
            behind += held[k]
            if j == asked:
                behind += gain
    return True


def note(net: Table, st: Table, node: int) -> None:
    """Keep up by rank and sequence what is held and what is to go."""
    microbatches, parts = net[SHAPE][3] // net[SHAPE][SLICES], net[SHAPE][5]
    if node >= 2 * parts:
        return
    held, left, oldest, newest = st[BEFORE], st[REST], st[RAISED_FROM], st[RAISED_LENGTH]
    r = net[RANK][node]
    j = node % net[SHAPE][3] // net[SHAPE][SLICES]
    k = r * microbatches + j
    if net[SHAPE][SLICES] > 1 and node >= parts:
        # its forwards have all run, so what is freed is not taken again
        st[AFTER][k] -= net[NET_CHANGE][2 * (node % parts)]
    held[k] += net[NET_CHANGE][2 * (node % parts)] * (1 if node < parts else -1)
    left[k] -= 1
    newest[r] = max(newest[r], j)
    while oldest[r] < microbatches and left[r * microbatches + oldest[r]] == 0:
        oldest[r] += 1


def offer(net: Table, st: Table, rule: Table, r: int, single: int) -> None:
    """Find the best candidate of a rank: its key, its class, its start."""
    done, end, ended, level = st[MARK], st[END], st[DUE], st[LEVEL]
    key_of, class_of, start_of = st[ORIGIN], st[PLACE], st[SAVED]
    room = net[LIMIT][r] - level[r]
    now = st[FREE][r]
    weight = 2 * net[SHAPE][5]
    queueing = net[SHAPE][LINKS] > 0
    key_of[r] = NEVER
    short = False
    for i in range(net[OF_RANK_PTR][r], net[OF_RANK_PTR][r + 1]):
        c = net[OF_RANK][i]
        at = net[CLASS_PTR][c] + done[c]
        while at < net[CLASS_PTR][c + 1] and ended[net[MEMBER][at]] == 1:
            done[c] += 1
            at += 1
        if at >= net[CLASS_PTR][c + 1]:
            continue
        node = net[MEMBER][at]
        begin = now
        ready = True
        for k in range(net[NEED_PTR][node], net[NEED_PTR][node + 1]):
            if ended[net[NEED][k]] == 0:
                ready = False
                break
            if queueing and net[NEED_MESSAGE][k] >= 0:
                message = net[NEED_MESSAGE][k]
                begin = max(begin, st[OFF][message] + net[MESSAGE_LATENCY][message])
            else:
                begin = max(begin, end[net[NEED][k]] + net[NEED_LAG][k])
        if not ready:
            continue
        if net[NET_START][2 * node + st[FUSED][node]] > room:
            short = True
            continue
        partner = net[PARTNER][c]
        if partner >= 0:
            if done[c] - done[partner] >= rule[IN_FLIGHT][c]:
                continue
            if single == 0 and not admits(net, st, node):
                continue
        key = begin
        if not (short and rule[TASTE][URGENT] == 1 and node >= weight):
            key += rule[PENALTY][c]
        if rule[TASTE][NOISE] > 0:
            key += int(rule[TASTE][NOISE] * 2.0 * (draw(st) + draw(st) + draw(st) - 1.5))
        if key < key_of[r]:
            key_of[r] = key
            class_of[r] = c
            start_of[r] = begin


def list_schedule(net: Table, st: Table, rule: Table) -> int:
    """Fill `SEQUENCE` by a rule for the forms in `FUSED`; 1 if it came to an end, 0 if there was no way on."""
    nodes, ranks, single = net[SHAPE][0], net[SHAPE][1], net[SHAPE][4]
    done, end, ended, level, free = st[MARK], st[END], st[DUE], st[LEVEL], st[FREE]
    key_of, class_of, start_of = st[ORIGIN], st[PLACE], st[SAVED]
    for c in range(net[SHAPE][2]):
        done[c] = 0
    for node in range(nodes):
        ended[node] = 0
    for column in range(ranks, ranks + net[SHAPE][LINKS]):
        free[column] = 0
    for r in range(ranks):
        free[r] = 0
        level[r] = net[BASE][r]
    if single == 1:
        see_through(net, st, rule[IN_FLIGHT])
    else:
        survey(net, st)
    for r in range(ranks):
        offer(net, st, rule, r, single)
    count = 0
    while count < nodes:
        best = 0
        for r in range(1, ranks):
            if key_of[r] < key_of[best]:
                best = r
        if key_of[best] >= NEVER:
            break
        c = class_of[best]
        node = net[MEMBER][net[CLASS_PTR][c] + done[c]]
        form = 2 * node + st[FUSED][node]
        end[node] = start_of[best] + net[NET_DURATION][form]
        free[best] = end[node]
        level[best] += net[NET_CHANGE][form]
        ended[node] = 1
        if net[SHAPE][LINKS] > 0:
            send(net, st, node, end[node], best)
        done[c] += 1
        st[SEQUENCE][count] = node
        count += 1
        if st[FUSED][node] == 1:
            ghost = net[MATE][node]
            end[ghost] = end[node]
            ended[ghost] = 1
            st[SEQUENCE][count] = ghost
            count += 1
        if single == 0:
            note(net, st, node)
        for k in range(net[OUT_PTR][node], net[OUT_PTR][node + 1]):
            r = net[RANK][net[OUT][k]]
            if r != best:
                offer(net, st, rule, r, single)
        offer(net, st, rule, best, single)
    for node in range(nodes):
        ended[node] = 0
        st[MARK][node] = 0
        st[SAVED][node] = 0
    for r in range(ranks):
        st[HANGS][r] = 0
    return 1 if count == nodes else 0
