"""The protocol as a runtime sees it: what runs again, what waits for whom, and what is refused."""

from __future__ import annotations

import dataclasses
import functools
import math
import queue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.executor.chain import LIMIT, gradients, in_one_piece, parameters, post_validated, same_bits, together
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.optimizer import (
    PostValidatedOptimizer,
    State,
    Verdict,
    queue_channels,
    stale_stages,
    synchronous_step,
    validation_points,
    wrong_ranks,
)
from zbsolve.executor.optimizer.verdict import Rule, clip_coefficient

SGD = functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9)
CHECKS = {"max_grad_norm": LIMIT, "check_overflow": True}


class ToyPipeline:
    """A pipeline of forwards whose gradients are made of the activations, so that a stale one shows.

    It does what the package's docstring asks of a runtime and nothing more.
    """

    def __init__(self, route, positions, microbatches, kinds):
        self.route, self.positions, self.microbatches, self.kinds = route, positions, microbatches, kinds
        self.ranks = len(positions)
        self.stages = [[s for s, r in enumerate(route) if r == rank] for rank in range(self.ranks)]
        self.rows = [[(s, j) for s in own for j in range(microbatches)] for own in self.stages]
        self.validate_at = validation_points(
            self.rows,
            [self.ranks - 1 - position for position in positions],
            lambda forward: (forward[0] - 1, forward[1]) if forward[0] else None,
        )
        self.reruns = 0

    def weights(self):
        return [torch.nn.Parameter(torch.linspace(0.5, 1.5, 6) + s) for s in range(len(self.route))]

    def forward(self, weight, x, microbatch):
        return torch.tanh(x * weight.detach() * 0.3 + 0.01 * microbatch)

    def data(self, iteration, microbatch):
        return torch.linspace(-1, 1, 6) * (iteration + 1) + microbatch

    def gradient(self, iteration, rank, outputs):
        kind = self.kinds[iteration][self.positions[rank]]
        found = torch.stack(outputs).sum(dim=0) * (5.0 if kind == "large" else 0.01)
        if kind == "inf":
            found[0] = math.inf
        return found

    def in_one_piece(self):
        weights = self.weights()
        by_position = sorted(range(self.ranks), key=lambda r: self.positions[r])
        optimizers = [SGD([weights[s] for s in self.stages[r]]) for r in by_position]
        for iteration in range(len(self.kinds)):
            outputs = {}
            for j in range(self.microbatches):
                x = self.data(iteration, j)
                for s, weight in enumerate(weights):
                    x = outputs[s, j] = self.forward(weight, x, j)
            for s, weight in enumerate(weights):
                mine = [outputs[s, j] for j in range(self.microbatches)]
                weight.grad = self.gradient(iteration, self.route[s], mine)
            synchronous_step(optimizers, **CHECKS)
        return [w.detach() for w in weights]

    def post_validated(self, *, obey=True):
        weights = self.weights()
        channels = queue_channels(self.ranks, timeout_s=5)
        borders = [queue.SimpleQueue() for _ in self.route]
        reruns = [0] * self.ranks

        def work(rank):
            position, row, here = self.positions[rank], self.rows[rank], self.validate_at[rank]
            stepper = PostValidatedOptimizer(
                SGD([weights[s] for s in self.stages[rank]]),
                rank=position,
                ranks=self.ranks,
                channel=channels[position],
                **CHECKS,
            )
            for iteration in range(len(self.kinds)):
                inputs, outputs = {}, {}

                def forward(s, j, inputs=inputs, outputs=outputs, iteration=iteration):
                    if (s, j) not in inputs:
                        inputs[s, j] = self.data(iteration, j) if s == 0 else borders[s].get(timeout=5)
                    outputs[s, j] = self.forward(weights[s], inputs[s, j], j)
                    if s + 1 < len(self.route):
                        borders[s + 1].put(outputs[s, j])

                def start_over(stale, inputs=inputs, forward=forward):
                    for s in self.stages[rank]:
                        if s - 1 in stale:
                            sender = self.route[s - 1]
                            sent = sum(t == s - 1 for t, _ in self.rows[sender][: self.validate_at[sender]])
                            had = sum(t == s for t, _ in row[:here])
                            for _ in range(sent - had):
                                borders[s].get(timeout=5)
                            for key in [key for key in inputs if key[0] == s]:
                                del inputs[key]
                    for s, j in row[:here]:
                        if s in stale:
                            forward(s, j)

                for s, j in row[:here]:
                    forward(s, j)
                validation = stepper.validate()
                if validation is not None and validation.rerun:
                    reruns[rank] += 1
                    route = [self.positions[r] for r in self.route]
                    if obey:
                        start_over(stale_stages(route, validation.wrong_ranks))
                for s, j in row[here:]:
                    forward(s, j)
                for s in self.stages[rank]:
                    mine = [outputs[s, j] for j in range(self.microbatches)]
                    weights[s].grad = self.gradient(iteration, rank, mine)
                stepper.step_begin()
            stepper.flush()

        together(self.ranks, work)
        assert len(set(reruns)) == 1
        self.reruns = reruns[0]
        return [w.detach() for w in weights]


ROUTES = {
    "linear": lambda p: list(range(p)),
    "v": lambda p: [*range(p), *reversed(range(p))],
    "looped": lambda p: [*range(p), *range(p)],
}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_running_again_what_the_docstring_says_gives_the_synchronous_weights(data):
    ranks = data.draw(st.integers(1, 4))
    route = ROUTES[data.draw(st.sampled_from(sorted(ROUTES)))](ranks)
    chain = data.draw(st.permutations(range(ranks)))
    kind = st.sampled_from(["small", "small", "large", "inf"])
    kinds = [[data.draw(kind) for _ in range(ranks)] for _ in range(data.draw(st.integers(1, 4)))]
    toy = ToyPipeline(route, chain, data.draw(st.integers(1, 5)), kinds)
    assert same_bits(toy.post_validated(), toy.in_one_piece())


def test_a_runtime_that_does_not_run_them_again_goes_wrong():
    toy = ToyPipeline(ROUTES["linear"](3), [0, 1, 2], 4, [["small", "small", "large"], ["small"] * 3])
    assert not same_bits(toy.post_validated(obey=False), toy.in_one_piece())
    assert toy.reruns == 1
    assert same_bits(toy.post_validated(), toy.in_one_piece())


def test_good_steps_and_skips_that_nobody_took_run_nothing_again():
    toy = ToyPipeline(ROUTES["linear"](3), [0, 1, 2], 4, [["small"] * 3, ["inf", "small", "small"], ["small"] * 3])
    assert same_bits(toy.post_validated(), toy.in_one_piece())
    assert toy.reruns == 0


@pytest.mark.parametrize(
    ("kinds", "verdict", "wrong", "undone"),
    [
        (["small", "small", "small", "small"], "kept", [], []),
        (["small", "small", "inf", "small"], "skipped", [0, 1], [0, 1]),
        (["inf", "small", "small", "small"], "skipped", [], []),
        (["small", "small", "small", "large"], "clipped", [0, 1, 2], [0, 1, 2]),
        (["small", "large", "small", "small"], "clipped", [0, 1, 2], [0]),
        (["small", "large", "small", "nan"], "skipped", [0], [0]),
        (["large", "small", "small", "inf"], "skipped", [], []),
    ],
)
def test_who_was_wrong_and_who_undoes(kinds, verdict, wrong, undone):
    heard = [own[0] for own in post_validated([kinds], SGD, **CHECKS).validations]
    assert {v.verdict for v in heard} == {Verdict(verdict)}
    assert all(list(v.wrong_ranks) == wrong for v in heard)
    assert [rank for rank, v in enumerate(heard) if v.undone] == undone
    assert all(v.rerun == bool(wrong) for v in heard)


def test_ranks_together_pass_a_limit_that_none_passes_alone():
    kinds = [["small"] * 4]
    own = [math.sqrt(sum(float(g.norm()) ** 2 for g in gradients("small", 0, r, parameters(r)))) for r in range(4)]
    limit = max(own) * 1.2
    assert math.hypot(*own) > limit
    run = post_validated(kinds, SGD, max_grad_norm=limit)
    assert run.validations[0][0].verdict is Verdict.CLIPPED
    assert run.validations[0][0].norm == pytest.approx(math.hypot(*own), rel=1e-6)
    assert same_bits(run.weights, in_one_piece(kinds, SGD, max_grad_norm=limit).weights)


@given(
    st.lists(st.floats(0, 1e200), min_size=1, max_size=6),
    st.floats(1e-3, 1e3),
    st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_a_bad_prefix_never_turns_good(squares, limit, overflows):
    """Monotone also after rounding: so nobody who held back regrets it."""
    rule = Rule(max_grad_norm=limit, check_overflow=True)
    state = None
    bad = False
    for position, (square, overflow) in enumerate(zip(squares, overflows, strict=False)):
        own = State(step=3, overflow=overflow, square_sum=square)
        state = rule.combine(state, own, position)
        now = rule.verdict(state) is not Verdict.KEPT
        assert now or not bad
        assert (state.first_bad is not None) == now
        bad = now
        assert State.unpack(state.pack()) == state


@given(st.floats(0, 1e30), st.floats(1e-6, 1e6), st.booleans())
def test_the_coefficient_is_the_one_torch_multiplies_by(square, limit, wide):
    dtype = torch.float64 if wide else torch.float32
    p = torch.nn.Parameter(torch.ones(1, dtype=dtype))
    p.grad = torch.ones(1, dtype=dtype)
    torch.nn.utils.clip_grads_with_norm_([p], limit, torch.tensor(math.sqrt(square), dtype=dtype))
    state = State(step=0, overflow=False, square_sum=square, wide=wide)
    assert float(p.grad) == clip_coefficient(state, limit)


def test_wrong_ranks_of_each_kind():
    full = State(step=0, overflow=False, square_sum=1.0, first_bad=2)
    assert wrong_ranks(full, Verdict.CLIPPED, 5) == range(4)
    assert wrong_ranks(full, Verdict.SKIPPED, 5) == range(2)
    # norms in float32 and in float64 may differ about a prefix; who held back then steps now
    assert wrong_ranks(full, Verdict.KEPT, 5) == range(2, 4)
    assert not wrong_ranks(dataclasses.replace(full, first_bad=None), Verdict.KEPT, 5)
    assert not wrong_ranks(dataclasses.replace(full, first_bad=0), Verdict.CLIPPED, 1)


def test_validation_points_are_closed_and_fill_the_time():
    def needs(forward):
        return (forward[0] - 1, forward[1]) if forward[0] else None

    rows = [[(s, j) for j in range(4)] for s in range(4)]
    assert validation_points(rows, [3, 2, 1, 0], needs) == (3, 2, 1, 0)
    assert validation_points(rows, [9, 9, 9, 9], needs) == (4, 4, 4, 4)
    # rank 0 hears it first here, so the others cannot run ahead of what it runs
    assert validation_points(rows, [0, 1, 2, 3], needs) == (0, 0, 0, 0)
    assert validation_points(rows, [1, 3, 0, 2], needs) == (1, 1, 0, 0)


def test_stale_stages_begin_at_the_first_wrong_rank_of_a_route():
    assert list(stale_stages([0, 1, 2, 2, 1, 0], range(2, 3))) == [2, 3, 4, 5]
    assert list(stale_stages([2, 1, 0], range(1))) == [2]
    assert list(stale_stages([0, 1], range(0))) == []


def test_a_float64_rank_widens_the_norm_for_all():
    channels = queue_channels(2)
    own = [parameters(0), parameters(1, torch.float64)]
    heard = [None, None]

    def work(rank):
        stepper = PostValidatedOptimizer(
            SGD(own[rank]), rank=rank, ranks=2, channel=channels[rank], max_grad_norm=LIMIT
        )
        for p, g in zip(own[rank], gradients("large", 0, rank, own[rank]), strict=True):
            p.grad = g
        stepper.step_begin()
        heard[rank] = stepper.validate()

    together(2, work)
    assert heard[0].norm == heard[1].norm
    assert heard[0].norm != float(torch.tensor(heard[0].norm, dtype=torch.float32))


def test_large_float64_numbers_overflow_the_norm_but_are_no_overflow():
    p = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    p.grad = torch.full((2,), 1e200, dtype=torch.float64)
    verdict, full, _ = synchronous_step([torch.optim.SGD([p], lr=1.0)], check_overflow=True)
    assert (verdict, full.overflow, full.square_sum) == (Verdict.KEPT, False, math.inf)


def test_a_parameter_that_several_ranks_hold_counts_once():
    own = [[torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))] for _ in range(3)]
    for shared, alone in own:
        shared.grad, alone.grad = torch.tensor([3.0, 4.0]), torch.tensor([1.0])
    optimizers = [torch.optim.SGD(o, lr=1.0) for o in own]
    replicas = [{o[0]: rank == 1} for rank, o in enumerate(own)]
    _, full, _ = synchronous_step(optimizers, max_grad_norm=100.0, replicas=replicas)
    assert full.square_sum == pytest.approx(25 + 3, rel=1e-12)
    # it is checked for overflow wherever it lies
    own[0][0].grad = torch.tensor([math.inf, 0.0])
    verdict, _, _ = synchronous_step(optimizers, check_overflow=True, replicas=replicas)
    assert verdict is Verdict.SKIPPED


def test_a_stale_forward_s_backward_is_refused_by_autograd():
    """Undoing counts as a write, so torch itself notices a backward through a forward that was not run again."""
    weight = torch.nn.Parameter(torch.ones(2))
    channels = queue_channels(2)
    stepper = PostValidatedOptimizer(SGD([weight]), rank=0, ranks=2, channel=channels[0], check_overflow=True)
    weight.grad = torch.ones(2)
    stepper.step_begin()
    stale = (weight * torch.ones(2, requires_grad=True)).sum()
    step, _, squares, wide, _ = channels[1].receive(0)
    channels[1].send(0, (step, 1.0, squares, wide, 1.0))
    assert stepper.validate().undone
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()


def test_a_group_of_devices_adds_its_members_first():
    channels = queue_channels(2)
    stepper = PostValidatedOptimizer(
        SGD(parameters(0)),
        rank=0,
        ranks=2,
        channel=channels[0],
        max_grad_norm=LIMIT,
        within_rank=lambda own: dataclasses.replace(own, square_sum=own.square_sum + 0.25),
    )
    stepper.step_begin()
    assert State.unpack(channels[1].receive(0)).square_sum == 0.25


def test_complex_gradients_count_both_parts():
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    p.grad = torch.full((3,), 3 + 4j, dtype=torch.complex64)
    _, full, _ = synchronous_step([torch.optim.SGD([p], lr=1.0)], max_grad_norm=1.0)
    assert full.square_sum == pytest.approx(75)
    assert float(p.grad.abs().square().sum()) == pytest.approx(1, rel=1e-5)


def test_norms_of_large_gradients_are_taken_in_slices(monkeypatch):
    p = torch.nn.Parameter(torch.zeros(37, 3))
    p.grad = torch.arange(111.0).view(37, 3)
    whole = synchronous_step([torch.optim.SGD([p], lr=0.0)], check_overflow=True)[1].square_sum
    monkeypatch.setattr("zbsolve.executor.optimizer.gradients._CHUNK", 10)
    sliced = synchronous_step([torch.optim.SGD([p], lr=0.0)], check_overflow=True)[1].square_sum
    assert whole == pytest.approx(float((p.grad.double() ** 2).sum()), rel=1e-12)
    assert sliced == pytest.approx(whole, rel=1e-12)


# what is refused, and how


def pending_stepper(**options):
    channels = queue_channels(2, timeout_s=0.05)
    own = parameters(0)
    stepper = PostValidatedOptimizer(SGD(own), rank=0, ranks=2, channel=channels[0], check_overflow=True, **options)
    for p in own:
        p.grad = torch.zeros_like(p)
    stepper.step_begin()
    return stepper, channels[1]


def test_a_step_that_waits_is_neither_saved_nor_overtaken():
    stepper, _ = pending_stepper()
    assert stepper.pending
    with pytest.raises(RunError, match=r"step 0 waits for its validation, so state_dict .* flush"):
        stepper.state_dict()
    with pytest.raises(RunError, match="load_state_dict"):
        stepper.load_state_dict({})
    with pytest.raises(RunError, match="step 0 was not validated"):
        stepper.step_begin()


def test_a_silent_neighbour_is_named():
    stepper, _ = pending_stepper()
    with pytest.raises(RunError, match=r"rank 0 waited 0.05 s for the full gradient state of rank 1"):
        stepper.validate()
    second = PostValidatedOptimizer(
        SGD(parameters(0)), rank=1, ranks=2, channel=queue_channels(2, timeout_s=0.05)[1], check_overflow=True
    )
    with pytest.raises(RunError, match="the prefix gradient state of rank 0"):
        second.step_begin()


def test_ranks_that_are_out_of_step_are_told_so():
    stepper, neighbour = pending_stepper()
    neighbour.send(0, State(step=7, overflow=False, square_sum=0.0).pack())
    with pytest.raises(RunError, match="rank 0 is at optimizer step 0, rank 1 at 7"):
        stepper.validate()


def test_an_optimizer_that_writes_into_kept_gradients_is_caught():
    channels = queue_channels(2)
    own = parameters(0)
    optimizer = torch.optim.SGD(own, lr=0.1, momentum=0.9, nesterov=True, foreach=True)
    stepper = PostValidatedOptimizer(
        optimizer, rank=0, ranks=2, channel=channels[0], max_grad_norm=LIMIT, keep_gradients="reference"
    )
    for p in own:
        p.grad = torch.zeros_like(p)
    with pytest.raises(RunError, match=r"wrote into its gradients.*keep_gradients='copy'"):
        stepper.step_begin()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "ranks": 2}, "rank must be from 0 to 1, not 2"),
        ({"ranks": 2, "check_overflow": True}, "need a channel"),
        ({"undo": "magic"}, "'snapshot' or 'inverse', not 'magic'"),
        ({"keep_gradients": "no"}, "'reference', 'copy' or None"),
        ({"max_grad_norm": -1.0}, "at least 0, not -1.0"),
        ({"max_grad_norm": math.nan}, "at least 0, not nan"),
        ({"replicas": {torch.zeros(2): True}, "check_overflow": True}, "no parameter of this rank's optimizer"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        PostValidatedOptimizer(SGD(parameters(0)), **options)


def test_sparse_gradients_and_lbfgs_and_torn_states_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidInput, match="sparse=False"):
        PostValidatedOptimizer(torch.optim.SGD(embedding.parameters(), lr=1.0), check_overflow=True).step_begin()
    with pytest.raises(InvalidInput, match="LBFGS"):
        PostValidatedOptimizer(torch.optim.LBFGS(parameters(0)))
    with pytest.raises(InvalidInput, match="the channel gave 2"):
        State.unpack((1.0, 2.0))
    with pytest.raises(InvalidInput, match="ranks must be at least 1"):
        queue_channels(0)
