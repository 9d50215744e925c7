"""What torch's pipelining runtime (torch.distributed.pipelining, 2.13) gets wrong beside the split, and what ours does.

Each test shows torch's behaviour first, so that it fails when torch changes. The numbers go on from `test_split_traps`;
that of DDP (6) needs processes and is in `tests/dist`.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._backward import stage_backward_weight
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from tests.executor import pipes
from tests.executor.split_reference import compare_gradients
from tests.executor.test_split_traps import Block, torch_forward, torch_input
from zbsolve.executor.boundary import TensorSpec
from zbsolve.executor.rank import boundaries_of
from zbsolve.executor.runtime import Pipeline
from zbsolve.executor.split import SplitStage, engine
from zbsolve.executor.transports.posted import PostedMail
from zbsolve.interop.torch import torch_rows
from zbsolve.lowering import Do, faults, lower
from zbsolve.ops import Kind, Op
from zbsolve.placement import Placement
from zbsolve.profile import Link, Profile, StageCost
from zbsolve.simulate import simulate
from zbsolve.timetable import Order

torch.set_num_threads(1)


# ---- torch's side


@contextlib.contextmanager
def process_group(rank: int, ranks: int):
    """One process as a rank of torch's: what it sends goes nowhere, what it receives is never written."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def torch_csv(tmp_path, rows: list[list[str]]) -> str:
    path = tmp_path / "order.csv"
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return str(path)


def torch_lowers(path: str, ranks: int, form: str = "compute_only"):
    """torch's runtime with a CSV, as rank 0 of linear stages; its constructor asks a stage for these numbers only."""
    stage = SimpleNamespace(stage_index=0, num_stages=ranks, group_size=ranks, group_rank=0)
    runtime = schedules._PipelineScheduleRuntime([stage], n_microbatches=3)
    runtime._load_csv(path, format=form)
    return runtime


# ---- 3


class Operations(TorchDispatchMode):
    """Counts the tensor operations."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_trap_3_a_split_backward_starts_autograd_once(monkeypatch):
    """torch walks the graph of every microbatch and starts autograd once a group of weights; ours once, and no walk."""
    started: list[str] = []
    run = torch.autograd.graph._engine_run_backward

    def counted(*arguments, **options):
        started.append("engine")
        return run(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", counted)
    monkeypatch.setattr(engine, "_engine", lambda: counted)
    walk = torch.distributed.pipelining._backward.construct_reverse_graph
    walked: list[int] = []

    def counted_walk(roots):
        found = walk(roots)
        walked.append(len(found))
        return found

    monkeypatch.setattr(torch.distributed.pipelining._backward, "construct_reverse_graph", counted_walk)

    torch.manual_seed(0)
    blocks = 4
    plain = nn.Sequential(*(Block(8) for _ in range(blocks)))
    theirs, mine = copy.deepcopy(plain), copy.deepcopy(plain)
    x, dy = torch.randn(2, 4, 8), torch.randn(2, 4, 8)

    _, y = torch_forward(plain, x)
    with Operations() as of_plain:
        y.backward(dy)
    assert len(started) == 1
    started.clear()

    leaf, y = torch_forward(theirs, x)
    with Operations() as of_theirs:
        stage_backward_weight(theirs.parameters(), torch_input(theirs, leaf, y, dy))
    # once for the input, and for the weights of each of the six modules of a block
    assert len(started) == 1 + 6 * blocks
    assert len(walked) == 1
    assert walked[0] > 6 * blocks
    assert of_theirs.count > of_plain.count
    compare_gradients(plain, theirs)
    started.clear()
    walked.clear()

    stage = SplitStage(mine)
    stage.forward(0, x, requires_grad=[True])
    with Operations() as of_mine:
        stage.backward_input(0, [dy])
        assert len(started) == 1
        stage.backward_weight(0)
    assert len(started) == 1
    assert walked == []
    assert of_mine.count <= of_plain.count
    compare_gradients(plain, mine)


# ---- 8


def test_trap_8_evaluation_runs_where_neighbours_share_a_rank(tmp_path):
    """torch's eval() runs the backwards of the schedule all the same, and raises at a stage next to one of its rank."""
    inputs, target = pipes.batch(2)
    stages = pipes.model(2)
    with process_group(0, 1):
        theirs = [PipelineStage(m, s, 2, torch.device("cpu")) for s, m in enumerate(copy.deepcopy(stages))]
        runtime = schedules._PipelineScheduleRuntime(theirs, 2, loss_fn=pipes.square_loss)
        runtime._load_csv(torch_csv(tmp_path, [["0F0", "0F1", "1F0", "1B0", "0B0", "1F1", "1B1", "0B1"]]))
        runtime.step(inputs, target=target)
        with pytest.raises(AssertionError, match="this stage doesn't have backward"):
            runtime.eval(inputs, target=target)

    def check(stages: list[nn.Module], placement: Placement) -> None:
        pipe = Pipeline(pipes.timetable(placement, 2), stages, pipes.square_loss)
        pipe.step(inputs, target)
        with torch.no_grad():
            torch.testing.assert_close(pipe.eval(inputs), nn.Sequential(*stages)(inputs))

    check(stages, Placement.v(1))
    check(pipes.model(4), Placement.v(2))


# ---- 9


def one_f_one_b(microbatches: int) -> Order:
    """On two ranks."""

    def row(stage: int, ahead: int) -> tuple[Op, ...]:
        forwards = [Op(Kind.FORWARD, stage, j) for j in range(microbatches)]
        backwards = [Op(Kind.BACKWARD, stage, j) for j in range(microbatches)]
        found = forwards[:ahead]
        for j, backward in enumerate(backwards):
            found += [*forwards[ahead + j : ahead + j + 1], backward]
        return tuple(found)

    return Order((row(0, 1), row(1, 0)))


def torch_buffers(tmp_path, monkeypatch, microbatches: int) -> tuple[int, int]:
    """Receive buffers the last rank of torch's runtime holds after two steps, and the most sends not waited for."""
    _, target = pipes.batch(microbatches)
    like = torch.zeros(2, pipes.WIDTH, requires_grad=True)
    sends: list[list[object]] = []
    most = 0
    start, wait = schedules._batch_p2p, schedules._wait_batch_p2p

    def counted_start(ops):
        nonlocal most
        works = start(ops)
        if ops and ops[0].op is dist.isend:
            sends.append(works)
            most = max(most, len(sends))
        return works

    def counted_wait(works):
        sends[:] = [others for others in sends if others is not works]
        wait(works)

    monkeypatch.setattr(schedules, "_batch_p2p", counted_start)
    monkeypatch.setattr(schedules, "_wait_batch_p2p", counted_wait)
    # nobody is there to agree that shapes are given
    monkeypatch.setattr(PipelineStage, "_warmup_backward_result", lambda *_, **__: torch.ones(1))
    rows = torch_rows(one_f_one_b(microbatches))
    with process_group(1, 2):
        stage = PipelineStage(pipes.model(2)[1], 1, 2, torch.device("cpu"), input_args=like, output_args=like)
        runtime = schedules._PipelineScheduleRuntime([stage], microbatches, loss_fn=pipes.square_loss)
        runtime._load_csv(torch_csv(tmp_path, rows))
        for _ in range(2):
            runtime.step(target=target)
            assert not sends
    monkeypatch.undo()
    held = {info.buffer.untyped_storage().data_ptr() for infos in stage.args_recv_info.values() for info in infos}
    return len(held), most


class Line:
    """An end of a connection that counts the sends under way."""

    def __init__(self) -> None:
        self.sends = self.most = 0

    def send(self, tensor: torch.Tensor) -> str:
        self.sends += 1
        self.most = max(self.most, self.sends)
        return "send"

    def receive(self, tensor: torch.Tensor) -> str:
        tensor.zero_()
        return "receive"

    def finish(self, work: str) -> None:
        self.sends -= work == "send"


def our_buffers(microbatches: int) -> tuple[int, int]:
    """The same of ours: its transport between processes, led through the actions of the last rank."""
    lowered = lower(simulate(pipes.problem(Placement.linear(2), microbatches), one_f_one_b(microbatches)))
    boundaries = boundaries_of(lowered, 1)
    like = torch.zeros(2, pipes.WIDTH, requires_grad=True)
    for boundary in boundaries.values():
        boundary.fix([TensorSpec.of(like)])
        boundary.complete = True  # as after the first gradient
    line = Line()
    mail = PostedMail(lambda *_: line, 0, lowered, boundaries, torch.device("cpu"), staged=False)
    for _ in range(2):
        for action in lowered.rows[1]:
            if action.do is Do.POST:
                mail.poster(action.message)()
            elif action.do is Do.WAIT:
                mail.waiter(action.message)()
            elif action.do is Do.SEND:
                mail.sender(action.message)([torch.zeros(2, pipes.WIDTH)])
            elif action.do is Do.COMPLETE:
                mail.completer(action.message)()
        assert line.sends == 0
        assert not mail._sending
    assert line.most == lowered.buffers[1].sends
    held = sum(len(slots._storages) for slots in mail._slots.values())
    assert held == lowered.buffers[1].forward_slots + lowered.buffers[1].backward_slots
    return held, line.most


def test_trap_9_buffers_are_as_many_as_are_alive_at_once(tmp_path, monkeypatch):
    """torch keeps a receive buffer a microbatch, and every send until the step ends; ours do not grow with either."""
    for microbatches in (4, 16):
        assert torch_buffers(tmp_path, monkeypatch, microbatches) == (microbatches, microbatches)
    # one for the microbatch at work and one for the next; a gradient is there before the next one is sent
    assert our_buffers(4) == our_buffers(16) == (2, 1)


# ---- 10


def quick_before_slow(quick: int, slow: int):
    """A quick stage ahead of a slow one: the output of F2 is there long before the slow rank is done with BW1."""
    rows = (
        "F0 F1 B0 W0 F2 B1 W1 B2 W2",
        "F0 BW0 F1 BW1 F2 BW2",
    )
    kinds = {"F": Kind.FORWARD, "B": Kind.BACKWARD_INPUT, "W": Kind.BACKWARD_WEIGHT, "BW": Kind.BACKWARD}
    order = Order(tuple(tuple(Op(kinds[c[:-1]], s, int(c[-1])) for c in row.split()) for s, row in enumerate(rows)))
    costs = tuple(
        StageCost(forward_ns=t, backward_input_ns=t, backward_weight_ns=t, activation_bytes=4, output_bytes=100)
        for t in (quick, slow)
    )
    asked = replace(pipes.problem(Placement.linear(2), 3), profile=Profile(stages=costs, link=Link(latency_ns=1)))
    return simulate(asked, order)


def test_trap_10_receives_are_posted_by_planned_time(tmp_path):
    """torch lets ranks take turns, an action each, however long it takes, and so posts a receive late."""
    timetable = quick_before_slow(10, 100)
    sent = next(timed for timed in timetable.rows[0] if timed.op == Op(Kind.FORWARD, 0, 2))
    busy = next(timed for timed in timetable.rows[1] if timed.op == Op(Kind.BACKWARD, 1, 1))
    assert sent.end_ns < busy.start_ns

    path = torch_csv(tmp_path, torch_rows(timetable.order))
    theirs = [str(action) for action in torch_lowers(path, 2).pipeline_order_with_comms[1]]
    assert theirs.index("1RECV_F2") > theirs.index("1B1")
    assert theirs.index("1F2") == theirs.index("1RECV_F2") + 1

    def posted(timetable) -> list[str]:
        row = [a for a in lower(timetable).rows[1] if a.do in (Do.POST, Do.COMPUTE) and a.op.microbatch is not None]
        return [f"{'post ' if a.do is Do.POST else ''}{a.op.kind.letter}{a.op.microbatch}" for a in row]

    ours = posted(timetable)
    assert ours.index("post F2") < ours.index("F1")
    # the same order with other times: the receive is posted at another place
    slow_first = posted(quick_before_slow(100, 10))
    assert slow_first.index("post F2") > slow_first.index("F1")


def test_trap_10_receives_out_of_the_order_of_their_sends_are_refused(tmp_path):
    """Without tags a receive takes what was sent first; torch's checks let two of them change places."""
    timetable = quick_before_slow(10, 100)
    lowered = torch_lowers(torch_csv(tmp_path, torch_rows(timetable.order)), 2).pipeline_order_with_comms
    other = {"UNSHARD", "RESHARD", "REDUCE_GRAD"}
    rows = [[str(a) for a in lowered[r] if str(a).lstrip("0123456789") not in other] for r in (0, 1)]
    first, second = rows[1].index("1RECV_F0"), rows[1].index("1RECV_F1")
    rows[1].insert(first, rows[1].pop(second))
    loaded = torch_lowers(torch_csv(tmp_path, rows), 2, "compute_comms").pipeline_order_with_comms
    assert [str(action) for action in loaded[1]][:2] == ["1RECV_F1", "1RECV_F0"]
    schedules._simulate_comms_compute(loaded, lambda stage: stage, 2)

    ours = lower(timetable)
    row = list(ours.rows[1])
    one, two = (
        next(i for i, a in enumerate(row) if a.do is Do.POST and a.op == Op(Kind.FORWARD, 1, j)) for j in (0, 1)
    )
    row.insert(one, row.pop(two))
    found = faults(replace(ours, rows=(ours.rows[0], tuple(row))))
    assert "from rank 0 to rank 1, send 0 is message 0 but receive 0 is for message 1" in found
