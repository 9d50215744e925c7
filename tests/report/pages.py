"""Reports for the tests."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

from tests.drawn import one_f_one_b, problem, split_1f1b
from zbsolve.draw.report import Entry, render_report
from zbsolve.placement import Placement
from zbsolve.problem import Problem
from zbsolve.profile import Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Timetable

HOSTILE = (
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "\"'><svg onload=window.owned=1>",
    "<!-- <script>",
    "]]> & &lt; @@DATA@@ ${7*7} {{7*7}}",
    "\u202egnp.exe\u2028\u2029\x00\x1b[31m\ud800",
    "javascript:window.owned=1//" + "x" * 5000,
)


def two() -> list[Entry]:
    """1F1B and a split one, with a limit and a link."""
    asked = problem(3, 5, memory_limit="2x", costs={"latency_ns": 100})
    return [Entry("1F1B", one_f_one_b(asked)), Entry("split", split_1f1b(asked))]


def hostile() -> list[Entry]:
    """Every hostile name as a title, as the profile's and as a stage's."""
    entries = []
    for name in HOSTILE:
        stages = tuple(
            StageCost(forward_ns=1000, backward_input_ns=1000, backward_weight_ns=1000, name=name[:200])
            for _ in range(2)
        )
        asked = Problem(profile=Profile(stages=stages, name=name[:200]), placement=Placement.linear(2), microbatches=2)
        entries.append(Entry(name, one_f_one_b(asked)))
    return entries


@functools.cache
def large(operations: int) -> Timetable:
    """A timetable of that many operations or a few more, on eight unequal stages."""
    from zbsolve.catalog import baseline

    stages = tuple(
        StageCost(
            forward_ns=10_000_000 + 137_731 * s,
            backward_input_ns=11_000_000 + 91_013 * s,
            backward_weight_ns=9_000_000 - 77_717 * s,
            activation_bytes=943_718_400 + s,
            backward_weight_bytes=123_456_789,
        )
        for s in range(8)
    )
    asked = Problem(
        profile=Profile(stages=stages, name="large"),
        placement=Placement.linear(8),
        microbatches=-(-operations // 24),
        memory_limit="1x",
    )
    return simulate(asked, baseline("zb-1p", asked))


def page(entries: list[Entry]) -> str:
    """The page as text."""
    return render_report(entries).decode()


def data(text: str) -> Any:
    """The data in a page."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])
