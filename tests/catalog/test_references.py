"""The rows of public schedulers, which split each rank's stage into equal chunks: reached or beaten."""

import pytest

from tests.catalog.helpers import chunked, figures, peak_times
from tests.solver.instances import INSTANCES
from zbsolve.placement import Placement


def rows_of(start):
    return [
        pytest.param(instance, row, id=f"{instance['name']} {row['schedule']}")
        for instance in INSTANCES.values()
        for row in instance["reference"]
        if row["schedule"].startswith(start)
    ]


def judge(name, instance, row, placement, limit=None, *, same=False):
    problem = chunked(instance, placement, limit)
    chunks = placement.stages // placement.ranks
    found = figures(name, problem)
    if same:
        assert (found.period_ns, found.makespan_ns) == (chunks * row["period_ns"], chunks * row["makespan_ns"])
    assert found.period_ns <= chunks * row["period_ns"]
    assert peak_times(problem, found.peak_bytes) <= float(row["peak"].rstrip("x")) + 1e-4


@pytest.mark.parametrize(("instance", "row"), rows_of("1F1B-I"))
def test_interleaved_1f1b(instance, row):
    chunks = int(row["schedule"][-2])
    judge("interleaved-1f1b", instance, row, Placement.looped(instance["ranks"], chunks), same=True)


@pytest.mark.parametrize(("instance", "row"), rows_of("1F1B-V"))
def test_1f1b_v(instance, row):
    judge("1f1b-v", instance, row, Placement.v(instance["ranks"]), same=True)


@pytest.mark.parametrize(("instance", "row"), rows_of("ZB-V"))
def test_zb_v(instance, row):
    """The same to the nanosecond on equal stages; on unequal ones never worse."""
    equal = "median" not in row["schedule"]
    judge("zb-v", instance, row, Placement.v(instance["ranks"]), row["memory_limit"], same=equal)


@pytest.mark.parametrize(("instance", "row"), rows_of("V-Half"))
def test_v_half(instance, row):
    judge("v-half", instance, row, Placement.v(instance["ranks"]))


@pytest.mark.parametrize(("instance", "row"), rows_of("V-Min"))
def test_v_min(instance, row):
    judge("v-min", instance, row, Placement.v(instance["ranks"]))
