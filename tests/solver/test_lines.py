"""Lines of orders: what one search improved step by step is one, and the best of each is gone on with in turn."""

import numpy as np

from tests.solver.instances import instance, unequal
from zbsolve.solution import Bound
from zbsolve.solver.budget import Budget
from zbsolve.solver.case import Case
from zbsolve.solver.compiled import plain
from zbsolve.solver.director import ARMS, Director
from zbsolve.solver.incumbent import Incumbent
from zbsolve.solver.pool import Pool
from zbsolve.solver.portfolio import plain_drafts
from zbsolve.solver.proposals import Proposals
from zbsolve.solver.tasks import AnnealParts, Done, Found


def pool_of(problem, most=300) -> Pool:
    return Pool(Case(problem, plain()), Incumbent(Bound(0, "none"), 0.0, 0.0, None), most)


def fill(pool: Pool, values: list[tuple[int, int | None]]) -> None:
    """Orders with these values on these lines; what they are does not matter here, as long as they differ."""
    found = next(plain_drafts(pool.case, Budget(1e18, 1)))
    for number, (value, line) in enumerate(values):
        fused = np.frombuffer(number.to_bytes(pool.case.nodes, "little"), dtype=np.int8)
        assert pool.add(value, found.sequence, fused, "test", line)


def test_the_best_of_each_line_stays_where_one_line_would_fill_the_pool():
    pool = pool_of(unequal(microbatches=4), most=8)
    one, other = pool.new_line(), pool.new_line()
    fill(pool, [(100 + k, one) for k in range(20)] + [(500, other), (400, other), (600, None)])
    assert [entry.value_ns for entry in pool.entries] == [100, 101, 102, 103, 104, 105, 106, 400]
    assert [(entry.value_ns, entry.line) for entry in pool.heads] == [(100, one), (400, other)]


def test_orders_without_a_line_are_lines_of_their_own():
    pool = pool_of(unequal(microbatches=4))
    fill(pool, [(300, None), (100, None), (200, None)])
    assert [entry.value_ns for entry in pool.heads] == [100, 200, 300]


def proposals_on(pool: Pool) -> Proposals:
    return Proposals(pool, Budget(1e18, 10**6), size=1, seed=0, gap=0.0, anneals=False)


def test_a_line_that_is_gone_on_with_in_vain_makes_room_for_the_next():
    pool = pool_of(instance("paper-1.5B-p8-m24", "0.75x"))
    lines = [pool.new_line() for _ in range(3)]
    fill(pool, [(100 + k, line) for k, line in enumerate(lines)])
    propose = proposals_on(pool).by_arm["annealing, part of an order"]
    met = [lines.index(propose().line) for _ in range(12)]
    assert met[:2] == [0, 0]
    assert met.count(0) >= met.count(1) >= met.count(2) >= 2


def test_a_line_that_got_better_is_gone_on_with_first():
    pool = pool_of(instance("paper-1.5B-p8-m24", "0.75x"))
    fill(pool, [(100, pool.new_line()), (200, last := pool.new_line())])
    propose = proposals_on(pool).by_arm["annealing, part of an order"]
    for _ in range(5):
        propose()
    found = pool.entries[-1]
    pool.add(90, found.sequence[::-1], found.fused, "test", last)
    assert [propose().line for _ in range(2)] == [last, last]


def test_what_a_part_finds_continues_the_line_that_it_came_from():
    pool = pool_of(instance("paper-1.5B-p8-m24", "0.75x"))
    fill(pool, [(100, pool.new_line()), (200, pool.new_line())])
    others = frozenset(ARMS) - {"annealing, part of an order"}
    director = Director(pool, Budget(1e18, 10**6), size=1, seed=0, gap=0.0, without=others)
    pending = director.next()
    assert isinstance(pending.task, AnnealParts)
    found = pool.heads[0]
    director.absorb(pending, Found(50, found.sequence[::-1], found.fused))
    director.absorb(pending, Done(1))
    assert [entry.value_ns for entry in pool.heads] == [50, 200]
    assert pool.heads[0].line == pending.task.line
