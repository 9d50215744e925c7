"""What is promised in seconds, added up on a clock of the test's own: nobody waits in these tests."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from tests.executor import pipes
from zbsolve.errors import RunError
from zbsolve.executor.crew import GRACE_S as CREW_GRACE_S
from zbsolve.executor.crew import LOOK_S
from zbsolve.executor.patience import LEAST_S, Patience
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.transports.health import GRACE_S, LAST_WORDS_S, PROMISE_S, SILENT_S, Health
from zbsolve.executor.transports.watch import ASK_S, CLOCK_S
from zbsolve.placement import Placement

STEP_S = 0.01


class ByHand:
    """A watch that does nothing by itself."""

    def add(self, watched): ...
    def remove(self, watched): ...
    def hurry(self): ...


class Waiting:
    """A rank that waits, or that is in one operation since 0."""

    away_s = 300.0

    def __init__(self, rank, *, busy=False):
        self.rank, self._busy = rank, busy
        self.patience = Patience.of(pipes.timetable(Placement.linear(3), 2), None)

    def doing(self):
        return f"rank {self.rank} is in F1 of stage 1" if self._busy else f"rank {self.rank} waits for F1 from rank 1"

    def busy(self):
        return self._busy

    def complaint(self, now):
        if self._busy and now > self.patience.seconds(first=False):
            return self.patience.complaint(self.doing(), now)
        return None


def world(*, store=None):
    store = store or HashStore()
    store.set_timeout(timedelta(seconds=1))
    ended = {}
    ranks = [
        Health(r, [0, 1, 2], store=store, watch=ByHand(), leave=lambda text, r=r: ended.setdefault(r, text))
        for r in range(3)
    ]
    return ranks, ended


def run(ranks, ended, *, attendants, frozen=(), stuck=(), until=PROMISE_S, phase=0.13):
    """Every rank inside a call from 0 on; when each was ended."""
    at = {}
    with ExitStack() as stack:
        for health in ranks:
            stack.enter_context(health.call({"kind": "step"}, attendants[health.rank]))
            health.ask(-ASK_S)
        for i in range(round(until / STEP_S) + 1):
            now = i * STEP_S
            for health in ranks:
                if health.rank in frozen:
                    continue
                late = health.rank * phase
                # the worst of phases: everyone asks as late after an event as its period allows
                if health.rank not in stuck and (now - late) % ASK_S < STEP_S:
                    health.ask(now)
                if (now - late) % CLOCK_S < STEP_S:
                    health.tick(now, now if health.rank in stuck else 0.0)
            for rank in ended.keys() - at.keys():
                at[rank] = now + LAST_WORDS_S
    return at


@pytest.mark.parametrize("phase", [0.0, 0.07, 0.13, 0.19, 0.24, 0.31])
def test_a_stalled_operation_ends_all_within_the_promise(phase):
    ranks, ended = world()
    at = run(ranks, ended, attendants=[Waiting(0), Waiting(1, busy=True), Waiting(2)], phase=phase)
    assert sorted(at) == [0, 1, 2]
    assert max(at.values()) <= PROMISE_S - 1.0
    assert ended[2].startswith(
        "rank 2 waits for F1 from rank 1, which failed: F1 of stage 1 stalls: it has been running"
    )


@pytest.mark.parametrize("phase", [0.0, 0.07, 0.13, 0.19, 0.24, 0.31])
def test_a_silent_process_ends_all_within_the_promise(phase):
    ranks, ended = world()
    at = run(ranks, ended, attendants=[Waiting(r) for r in range(3)], frozen=(1,), phase=phase)
    assert sorted(at) == [0, 2]
    assert max(at.values()) <= PROMISE_S - 1.0
    assert "rank 1, which failed: its process has given no sign of life" in ended[0]


def test_a_store_that_never_answers_ends_all_within_the_promise():
    ranks, ended = world()
    at = run(ranks, ended, attendants=[Waiting(r) for r in range(3)], frozen=(0,), stuck=(1, 2))
    assert sorted(at) == [1, 2]
    assert max(at.values()) <= PROMISE_S - 1.0
    assert "its process, which keeps the store of torch.distributed, does not answer: it is frozen" in ended[1]


def test_the_longest_way_of_each_kind_adds_up_to_less_than_the_promise():
    assert LEAST_S + CLOCK_S + 2 * ASK_S + GRACE_S + LAST_WORDS_S < PROMISE_S
    assert SILENT_S + 3 * ASK_S + CLOCK_S + GRACE_S + LAST_WORDS_S < PROMISE_S
    assert LEAST_S + LOOK_S + CREW_GRACE_S < PROMISE_S


def test_limits_that_are_set_count_in_the_first_step_too():
    table = pipes.timetable(Placement.linear(2), 2)
    assert Patience.of(table, None).seconds(first=True) == 120
    assert Patience.of(table, 3.0).seconds(first=True) == 3
    assert Patience.of(table, None, 7.0).away == 7


def test_a_rank_that_closes_while_another_needs_it_raises():
    ranks, _ = world()
    first, second = ranks[0], ranks[1]
    with first.call({"kind": "step"}, Waiting(0)):
        second.log.leave("has closed the pipeline")
        second._publish()
        first.ask(1.0)
        first.ask(1.5)
    second.ask(2.0)
    told = r"while this rank closed .* rank 0 is in call 1 \(step 1\), but rank 1 has closed"
    with pytest.raises(RunError, match=told):
        second.close()
    with pytest.raises(RunError, match="the pipeline cannot go on"), first.call({"kind": "step"}, Waiting(0)):
        pass


def test_a_failure_of_ones_own_is_not_told_twice():
    ranks, _ = world()
    ranks[0].report("F1 of stage 0: ValueError: no")
    ranks[0].close()
    ranks[1].ask(1.0)
    with pytest.raises(RunError, match="rank 0 failed: F1 of stage 0: ValueError: no"):
        ranks[1].close()


def test_a_keeper_that_went_home_in_good_order_is_no_failure():
    ranks, ended = world()
    ranks[0].log.leave("has closed the pipeline")
    ranks[0]._publish()
    ranks[1].ask(1.0)
    ranks[1]._store_is_gone("is gone")
    assert ranks[1].cause() is None
    assert not ended


def test_the_threads_are_two_whatever_the_number_of_connections():
    import threading
    import time

    from zbsolve.executor.transports.watch import Watch

    class Counted:
        asked = 0

        def ask(self, now):
            self.asked += 1

        def tick(self, now, asking_s): ...

    watch, many = Watch(), [Counted() for _ in range(20)]
    before = threading.active_count()
    for one in many:
        watch.add(one)
    assert threading.active_count() == before + 2
    while not all(one.asked for one in many):
        time.sleep(0.01)
    for one in many:
        watch.remove(one)
    for thread in list(watch._threads.values()):
        thread.join(10)
    assert threading.active_count() == before


def test_a_look_at_a_rank_that_moves_on_meanwhile_is_harmless():
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 4), pipes.model(2), pipes.square_loss)
    pipe.step(*pipes.batch(4))
    rank = pipe.ranks[0]
    # the place of a long program, read with a shorter one under way
    rank.at[0], rank.now = 10_000, rank.evaluation
    assert rank.computing() is None
    assert rank.doing() == "rank 0 is between steps"


def test_what_an_evaluation_compiles_is_given_as_long_as_what_a_step_does():
    pipe = Pipeline(pipes.timetable(Placement.linear(2), 4), pipes.model(2), pipes.square_loss)
    rank = pipe.ranks[0]
    pipe.step(*pipes.batch(4))
    assert not rank.first_time()
    rank.now = rank.evaluation
    assert rank.first_time()
    pipe.eval(pipes.batch(4)[0])
    assert not rank.first_time()
    fresh = Pipeline(pipes.timetable(Placement.linear(2), 4), pipes.model(2), pipes.square_loss)
    fresh.load_state_dict(pipe.state_dict())
    fresh.ranks[0].now = fresh.ranks[0].training
    assert fresh.ranks[0].first_time(), "after a checkpoint everything is compiled anew"
