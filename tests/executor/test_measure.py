"""Bytes exact on modules small enough to count by hand; times only as far as no clock can contradict."""

from __future__ import annotations

import re
import time

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
from torch import nn  # noqa: E402

from zbsolve.errors import InvalidInput  # noqa: E402
from zbsolve.executor import clock, held  # noqa: E402
from zbsolve.executor.borders import borders  # noqa: E402
from zbsolve.executor.measure import measure_profile  # noqa: E402
from zbsolve.executor.stagework import StageWork  # noqa: E402
from zbsolve.units import MAX_AMOUNT  # noqa: E402

FLOAT = 4


def measured(stages, inputs, target=None, loss_fn=None, **options):
    target = torch.zeros(1) if target is None else target
    loss_fn = loss_fn or (lambda output, _: (output[0] if isinstance(output, tuple) else output).sum())
    return measure_profile(stages, (inputs, target), loss_fn, **{"repeats": 2, "warmup": 1, **options})


def squares(output, target):
    return (output - target).square().sum()


def test_linear_stages_hold_what_can_be_counted_by_hand():
    first, last = nn.Linear(8, 16), nn.Linear(16, 8)
    profile = measured([first, last], torch.randn(4, 8), torch.randn(4, 8), squares)
    a, b = profile.stages
    # F keeps the input; the output is handed on, and nothing here needs it
    assert a.activation_bytes == 4 * 8 * FLOAT
    # W needs the input, and the gradient of the output
    assert a.backward_weight_bytes == (4 * 8 + 4 * 16) * FLOAT
    # the input, and the difference to the target (saved by the square)
    assert b.activation_bytes == (4 * 16 + 4 * 8) * FLOAT
    # the square has let go of the difference; the gradient of the linear layer's output waits for W
    assert b.backward_weight_bytes == (4 * 16 + 4 * 8) * FLOAT
    # a checkpoint is the input; in a receive slot it stays when all else is moved away
    assert (a.checkpoint_bytes, b.checkpoint_bytes) == (None, 4 * 16 * FLOAT)
    assert (a.offload_bytes, b.offload_bytes) == (0, 4 * 8 * FLOAT)
    assert (a.output_bytes, b.output_bytes) == (4 * 16 * FLOAT, 0)
    assert a.static_bytes == (8 * 16 + 16) * FLOAT * 4
    assert a.workspace_bytes == b.workspace_bytes == 0


def test_static_bytes_follow_the_optimizer_and_what_trains():
    frozen, free = nn.Linear(2, 3), nn.BatchNorm1d(3)
    frozen.requires_grad_(False)
    profile = measured([nn.Sequential(frozen, free)], torch.randn(5, 2), optimizer_copies=1)
    buffers = (3 + 3) * FLOAT + 8
    assert profile.stages[0].static_bytes == 9 * FLOAT + 6 * FLOAT * 3 + buffers


def test_a_storage_counts_once_and_whole_however_many_look_at_it():
    base = torch.zeros(10)
    assert held.storage_bytes([base, base[:3], base.view(2, 5)]) == 40
    assert held.storage_bytes([base[:3], torch.zeros(2)], without=[base[5:]]) == 8


def test_a_sample_cut_from_a_large_tensor_counts_only_itself():
    corpus = torch.randn(1000, 8)
    profile = measured([nn.Linear(8, 2), nn.Linear(2, 2)], corpus[:4])
    assert profile.stages[0].activation_bytes == 4 * 8 * FLOAT


def test_an_in_place_module_keeps_one_copy():
    kept, in_place = (
        measured([nn.Identity(), nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=i))], torch.randn(3, 4))
        for i in (False, True)
    )
    # the linear layer's output is overwritten where it stands, and autograd saves that
    assert in_place.stages[1].activation_bytes == kept.stages[1].activation_bytes
    assert in_place.stages[1].activation_bytes == (3 * 4 + 3 * 4) * FLOAT


class Pair(nn.Module):
    """Takes and returns floats beside integers."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, mask):
        return self.layer(x) * mask, mask


class TakesFirst(nn.Module):
    def forward(self, x, mask):
        return x.tanh()


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, tokens, mask):
        return self.table(tokens), mask


def test_integers_masks_tuples_and_stages_without_parameters():
    inputs = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[[True], [False]]] * 2)
    profile = measured([Embed(), Pair(), TakesFirst(), nn.ReLU()], inputs)
    floats, flags = 2 * 2 * 4 * FLOAT, 4
    assert [s.output_bytes for s in profile.stages] == [floats + flags, floats + flags, floats, 0]
    assert profile.stages[3].static_bytes == 0
    # tanh saves its output, and nobody what came in
    assert profile.stages[2].activation_bytes == floats


def test_frozen_stages_cost_no_backward_and_do_not_fail():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    for parameter in [*first.parameters(), *second.parameters()]:
        parameter.requires_grad_(False)
    profile = measured([first, second, nn.Linear(4, 2)], torch.randn(3, 4))
    assert profile.stages[0].static_bytes == 20 * FLOAT
    # no input of the last stage wants a gradient, and still its weights get theirs from W
    assert profile.stages[2].backward_weight_ns > 0
    assert "W does 100.0 % of weight-gradient FLOPs" in profile.source.note


def test_what_is_not_deferred_is_told():
    profile = measured([nn.Sequential(nn.Linear(4, 4), nn.PReLU(4)), nn.Linear(4, 2)], torch.randn(3, 4))
    assert "; B has to weigh 1.weight of stage 0; " in profile.source.note
    found = re.search(r"W does (\d+\.\d) % of weight-gradient FLOPs", profile.source.note)
    # 3 rows: 4 x 4 and a bias of 4; 4 x 2 and a bias of 2; a PReLU of 4 that B does
    done, all_ = 3 * (2 * 16 + 4 + 2 * 8 + 2), 3 * (2 * 16 + 4 + 2 * 8 + 2 + 2 * 4)
    assert float(found[1]) == round(100 * done / all_, 1)


def test_a_frozen_stage_in_the_middle_still_hands_gradients_back():
    middle = nn.Linear(4, 4).requires_grad_(False)
    profile = measured([nn.Linear(4, 4), middle, nn.Linear(4, 2)], torch.randn(3, 4))
    assert profile.stages[1].backward_ns > 0
    assert (profile.stages[1].backward_weight_bytes, profile.stages[1].static_bytes) == (0, 20 * FLOAT)


def test_times_are_those_of_the_stage_that_takes_them():
    class Slow(nn.Module):
        def forward(self, x):
            time.sleep(0.003)
            return x.clone()

    profile = measured([nn.Linear(2, 2), Slow(), nn.Linear(2, 2)], torch.randn(2, 2), repeats=3)
    assert profile.stages[1].forward_ns >= 3_000_000
    for stage in profile.stages:
        for field in ("forward_ns", "backward_weight_ns", "backward_ns"):
            assert 0 < getattr(stage, field) < MAX_AMOUNT
    assert len(profile.source.spread) == 3
    assert (profile.source.samples, profile.source.split) == (3, "zbsolve")
    assert dict(profile.source.versions)["torch"] == torch.__version__
    assert "wall time, 1 thread for each operation" in profile.source.note
    assert profile.link.latency_ns > 0 or "link: not measured" in profile.source.note


def test_processor_time_leaves_out_waiting():
    class Waits(nn.Module):
        def forward(self, x):
            time.sleep(0.05)
            return x.clone()

    profile = measured([nn.Linear(2, 2), Waits()], torch.randn(2, 2), clock="processor")
    assert 0 < profile.stages[1].forward_ns < 50_000_000
    assert "processor time" in profile.source.note
    assert "WARNING" in measured([Waits()], torch.randn(2, 2)).source.note


def test_the_model_and_the_process_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    mark = torch.ones(3, 3)
    model[0].weight.grad = mark
    inputs, before = torch.randn(4, 3), {k: v.clone() for k, v in model.state_dict().items()}
    sample, random, threads = inputs.clone(), torch.random.get_rng_state(), torch.get_num_threads()
    measured([model], inputs)
    assert model[0].weight.grad is mark
    assert torch.equal(mark, torch.ones(3, 3))
    assert model[0].bias.grad is None
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(inputs, sample)
    assert torch.equal(random, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_gradients_between_stages_are_the_real_ones():
    torch.manual_seed(0)
    stages = [nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)]
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    works = [StageWork(0, stages[0]), StageWork(1, stages[1]), StageWork(2, stages[2], nn.functional.mse_loss, y)]
    found = borders(works, (x,))
    hidden = stages[0](x).detach().requires_grad_()
    nn.functional.mse_loss(stages[2](stages[1](hidden)), y).backward()
    torch.testing.assert_close(found[0].output_grads[0], hidden.grad)
    torch.testing.assert_close(found[1].inputs[0], hidden.detach())


def test_a_stage_may_return_a_view_and_change_its_input():
    class Transposes(nn.Module):
        def forward(self, x):
            return x.t()

    stages = [nn.Linear(3, 3), Transposes(), nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3)]
    profile = measured(stages, torch.randn(3, 3))
    assert profile.stages[1].activation_bytes == 0


def test_the_first_stage_may_change_its_input_since_it_gets_a_copy():
    inputs = torch.tensor([[-1.0, 2.0]])
    measured([nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)), nn.Linear(2, 2)], inputs)
    assert inputs.tolist() == [[-1.0, 2.0]]


def test_a_failing_model_is_reported_with_its_own_words_and_place():
    with pytest.raises(InvalidInput, match="forward of stage 1 failed: RuntimeError: mat1 and mat2 shapes"):
        measured([nn.Linear(3, 4), nn.Linear(3, 4)], torch.randn(2, 3))

    class Odd(nn.Module):
        def forward(self, x):
            return {"x": x}

    with pytest.raises(InvalidInput, match="stage 0 returned a dict"):
        measured([Odd(), nn.Linear(3, 4)], torch.randn(2, 3))

    def broken(output, target):
        raise KeyError("no such loss")

    with pytest.raises(InvalidInput, match=r"no such loss.*test_measure\.py, line"):
        measured([nn.Linear(3, 4)], torch.randn(2, 3), loss_fn=broken)

    async def later(*values):
        return values

    class Later(nn.Linear):
        forward = later

    with pytest.raises(InvalidInput, match="loss function returned a coroutine"):
        measured([nn.Linear(3, 4)], torch.randn(2, 3), loss_fn=later)
    with pytest.raises(InvalidInput, match="stage 0 returned a coroutine"):
        measured([Later(3, 4), nn.Linear(4, 4)], torch.randn(2, 3))
    with pytest.raises(InvalidInput, match="one element"):
        measured([nn.Linear(3, 4)], torch.randn(2, 3), loss_fn=lambda output, _: output)


def test_a_complex_loss_is_refused_in_one_message():
    words = r"^the loss function must return a real number, got torch.complex64: take its \.abs\(\) or \.real$"
    with pytest.raises(InvalidInput, match=words):
        measured([nn.Linear(3, 4)], torch.randn(2, 3), loss_fn=lambda o, _: torch.complex(o.sum(), o.sum()))


@pytest.mark.parametrize(
    ("stages", "inputs", "options", "message"),
    [
        ([], torch.ones(1, 2), {}, "no stages"),
        ("text", torch.ones(1, 2), {}, "list of torch.nn.Module"),
        ([nn.Linear(2, 2), 3], torch.ones(1, 2), {}, "as stage 1"),
        ([nn.Linear(2, 2)], [1.0], {}, "as its inputs"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"repeats": 0}, "repeats"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"threads": 0}, "threads"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"warmup": -1}, "warmup"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"clock": "sun"}, "clock"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"clock": "processor", "threads": 2}, "threads=1"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"device": "toaster"}, "no device"),
        ([nn.Linear(2, 2)], torch.ones(1, 2), {"device": "meta"}, "works on cpu and cuda"),
    ],
)
def test_what_cannot_be_measured_is_refused(stages, inputs, options, message):
    with pytest.raises(InvalidInput, match=message):
        measured(stages, inputs, **options)


def test_stages_that_share_weights_are_refused():
    same = nn.Linear(2, 2)
    with pytest.raises(InvalidInput, match="stages 0 and 2 are the same module"):
        measured([same, nn.ReLU(), same], torch.ones(1, 2))
    with pytest.raises(InvalidInput, match=r"stages 0 and 1 share a weight \(weight and 1\.weight\)"):
        measured([same, nn.Sequential(nn.ReLU(), same)], torch.ones(1, 2))
    tied, view = nn.Linear(2, 2), nn.Linear(2, 2)
    tied.weight = same.weight
    view.weight.data = same.weight.data.t()
    for other in (tied, view):
        with pytest.raises(InvalidInput, match="stages 0 and 1 share a weight"):
            measured([same, other], torch.ones(1, 2))


def test_stages_may_share_what_has_no_weights_and_be_tied_within():
    act, tied = nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    profile = measured([nn.Sequential(nn.Linear(2, 2), act), nn.Sequential(tied, act)], torch.ones(1, 2))
    assert "WARNING: on stage" not in profile.source.note


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_told(value):
    told = []
    profile = measured([nn.Linear(2, 2)], torch.full((1, 2), value), warn=told.append)
    (warning,) = [text for text in told if "the loss of the sample is" in text]
    assert warning.startswith("WARNING: ")
    assert warning in profile.source.note
    assert "the loss" not in measured([nn.Linear(2, 2)], torch.ones(1, 2)).source.note


class Cut(nn.Module):
    def __init__(self, way):
        super().__init__()
        self.layer, self.way = nn.Linear(2, 2), way

    def forward(self, x):
        if self.way == "no_grad":
            with torch.no_grad():
                return self.layer(x)
        return self.layer(x.detach())


@pytest.mark.parametrize("way", ["detach", "no_grad"])
def test_a_stage_that_cuts_the_backward_is_told(way):
    note = measured([nn.Linear(2, 2), Cut(way), nn.Linear(2, 2)], torch.ones(1, 2)).source.note
    assert "WARNING: stage 1 gives its input no gradient" in note
    assert "stage 2 gives" not in note
    # nobody waits for the gradient of the first stage, or of a stage behind frozen ones
    assert "gives its input" not in measured([Cut("detach"), nn.Linear(2, 2)], torch.ones(1, 2)).source.note
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert "gives its input" not in measured([frozen, Cut("detach")], torch.ones(1, 2)).source.note


class Reentrant(nn.Module):
    def __init__(self, *, also):
        super().__init__()
        self.also = also
        self.first, self.block = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(self.block, x, use_reentrant=True) + self.first(x) + (self.block(x) if self.also else 0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_that_recomputes_nothing_is_told():
    for also in (False, True):
        note = measured([Reentrant(also=also), nn.Linear(2, 2)], torch.ones(1, 2)).source.note
        assert "WARNING: a reentrant checkpoint on stage 0 gets no input that wants a gradient" in note
        assert ("on stage 0 no gradient reaches block.weight, block.bias" in note) is not also
    # its input wants a gradient: it recomputes
    stage = nn.Sequential(nn.Linear(2, 2), Reentrant(also=False))
    assert "checkpoint" not in measured([stage, nn.Linear(2, 2)], torch.ones(1, 2)).source.note


def test_doubts_leave_the_gradients_of_the_caller():
    stage = nn.Linear(2, 2)
    mine = stage.weight.grad = torch.full((2, 2), 7.0)
    measured([stage], torch.ones(1, 2))
    assert stage.weight.grad is mine
    assert bool((mine == 7).all())


def test_cuda_is_refused_where_there_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="no CUDA device"):
        measured([nn.Linear(2, 2)], torch.ones(1, 2), device="cuda")


def test_the_allocator_way_reads_differences_and_peaks(monkeypatch):
    """The arithmetic on a scripted allocator; only a GPU can test that the real one is asked rightly."""
    # base, after F, after B, as a checkpoint and moved away, each split and not; peaks in F, B, W, second F, fused
    levels, peaks = iter([1000, 1400, 1300, 1110, 1120, 1150, 1130]), iter([1450, 1600, 1320, 1450, 1500])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(levels))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    work = StageWork(0, nn.Linear(2, 2), lambda output, _: output.sum(), torch.zeros(1))
    (border,) = borders([work], (torch.ones(1, 2),))
    assert held.held_bytes(work, border, torch.device("cuda", 0)) == held.Held(400, 300, 200, 120, 150)
    assert next(levels, None) is None


class Table(nn.Module):
    """Saves a constant that all microbatches share, a view of its input, and what it makes of both."""

    def __init__(self):
        super().__init__()
        self.mask = torch.rand(8)

    def forward(self, x):
        return (x.view(-1) * self.mask.repeat(4)).exp().view(4, 8) * self.mask


def test_what_is_shared_or_given_does_not_count_as_moved():
    (cost,) = measured([Table()], torch.randn(4, 8).requires_grad_(), torch.zeros(4, 8), squares).stages
    # the repeated mask, the exponential, the difference; of the input nothing is needed, but it waits in its slot
    assert cost.activation_bytes == 3 * 4 * 8 * FLOAT
    assert cost.offload_bytes == 3 * 4 * 8 * FLOAT
    assert cost.checkpoint_bytes == 4 * 8 * FLOAT


class Watchful(nn.Module):
    """Takes a gradient inside its forward, so it cannot be computed again."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        z = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(z.exp().sum(), z)
        return self.linear(x + slope.detach()).exp()


def test_a_stage_that_cannot_be_computed_again_is_measured_all_the_same():
    (cost,) = measured([Watchful()], torch.randn(4, 8), torch.zeros(4, 8), squares).stages
    assert cost.checkpoint_bytes is None
    assert 0 < cost.offload_bytes <= cost.activation_bytes


def test_the_way_to_host_memory_is_measured_or_given():
    stages = [nn.Sequential(nn.Linear(8, 8), nn.Tanh())]
    found = measured(stages, torch.randn(4, 8), torch.zeros(4, 8), squares)
    assert found.host_link is not None
    assert "host link: copies" in found.source.note
    given = measured(stages, torch.randn(4, 8), torch.zeros(4, 8), squares, host_bandwidth=7 * 10**9).host_link
    assert given.to_host_bytes_per_second == given.from_host_bytes_per_second == 7 * 10**9
    with pytest.raises(InvalidInput, match="host_bandwidth"):
        measured(stages, torch.randn(4, 8), torch.zeros(4, 8), squares, host_bandwidth=0)


def test_the_cuda_clock_subtracts_events_in_ms(monkeypatch):
    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.at = stream.now = stream.now + 1.5

        def elapsed_time(self, other):
            return other.at - self.at

    class Stream:
        now = 0.0

    stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    watch = clock.clock_of(torch.device("cuda", 0))
    first, second = watch.mark(), watch.mark()
    watch.settle()
    assert watch.between(first, second) == 1_500_000
