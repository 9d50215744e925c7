"""What models do: tie weights, drop out, cast, compile, freeze, hook, parametrize, write in place."""

from __future__ import annotations

import copy
import pickle
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from tests.executor.split_reference import Plain, compare_gradients, gradients_of, run_both, same
from zbsolve.errors import InvalidInput, RunError
from zbsolve.executor.split import SplitStage


def rows(count: int = 3, width: int = 6) -> list[list[torch.Tensor]]:
    torch.manual_seed(5)
    return [[torch.randn(4, 3, width)] for _ in range(count)]


def tokens(count: int = 3) -> list[list[torch.Tensor]]:
    torch.manual_seed(5)
    return [[torch.randint(11, (4, 3))] for _ in range(count)]


class Tied(nn.Module):
    """Embedding and head share a table, by module or by function."""

    def __init__(self, by_function: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.inner = nn.Linear(6, 6)
        self.head = None if by_function else nn.Linear(6, 11, bias=False)
        if self.head is not None:
            self.head.weight = self.embed.weight

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.inner(self.embed(i)).tanh()
        return self.head(x) if self.head is not None else functional.linear(x, self.embed.weight)


@pytest.mark.parametrize("by_function", [False, True])
def test_tied_weights_are_exact(by_function):
    report = run_both(lambda: Tied(by_function), tokens(), [False]).report()
    assert [f.name for f in report.fallback] == (["embed.weight"] if by_function else [])


def test_a_weight_used_five_times_is_summed_in_autograds_order():
    def make() -> nn.Module:
        shared = nn.Linear(6, 6)
        return nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), shared, nn.Sequential(shared, nn.Tanh()), shared)

    run_both(make, rows(), [True])


def test_uses_by_module_and_by_function_agree_to_rounding():
    """With three uses, one of them in B, autograd's brackets cannot be had; the sum is right all the same."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(functional.linear(self.inner(x).tanh(), self.inner.weight).tanh())

    run_both(Mixed, rows(), [True], exact=False)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [False, True], ids=["around the stage", "inside the stage"])
def test_autocast(dtype, inside):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8, bias=False), nn.RMSNorm(8)
            )
            self.conv = nn.Conv1d(8, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)
            self.last = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype, enabled=inside or torch.is_autocast_enabled("cpu")):
                x = self.body(x)
                x = self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
                # twice from one cast, where autocast remembers it
                return self.last(torch.tanh(self.last(x)))

    with torch.autocast("cpu", dtype, enabled=not inside):
        run_both(Model, rows(width=8), [True])


def test_autocast_around_b_and_w_changes_nothing():
    torch.manual_seed(0)
    module = nn.Linear(64, 64)
    twin = copy.deepcopy(module)
    x, dy = torch.randn(8, 64), torch.randn(8, 64)
    twin(x).backward(dy)
    stage = SplitStage(module)
    stage.forward(0, x)
    with torch.autocast("cpu", torch.bfloat16):
        stage.backward_input(0, [dy])
        stage.backward_weight(0)
    compare_gradients(twin, module)


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_is_drawn_again_alike_under_checkpointing(reentrant):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.inner = nn.Sequential(Counter(), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 6), nn.Dropout(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    stage = run_both(Model, rows(), [True])
    assert stage.module.inner[0].forwards == 3 * 2
    assert stage.report().fallback == ()


def test_nested_checkpoints_and_autocast_in_them():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            def outer(x: torch.Tensor) -> torch.Tensor:
                return self.b(checkpoint(lambda y: self.a(y).tanh(), x, use_reentrant=False)).tanh()

            with torch.autocast("cpu", torch.bfloat16):
                return checkpoint(outer, x, use_reentrant=False)

    run_both(Model, rows(width=8), [True])


def test_selective_checkpoints():
    def policy(_context, op, *_args, **_named):
        products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6, bias=False), nn.LayerNorm(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            contexts = partial(create_selective_checkpoint_contexts, policy)
            return checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)

    run_both(Model, rows(), [True])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_submodules_fall_back_and_say_so():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrapped = torch.compile(nn.Sequential(nn.Linear(6, 6), nn.Tanh()), backend="eager")
            self.in_place = nn.Linear(6, 6)
            self.in_place.compile(backend="eager")
            self.hidden = nn.Linear(6, 6)
            self.called = torch.compile(lambda x: self.hidden(x).tanh(), backend="eager")
            self.free = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.free(self.called(self.in_place(self.wrapped(x))))

    torch.manual_seed(0)
    module, twin = Model(), Model()
    twin.load_state_dict(module.state_dict())
    stage, plain = SplitStage(module), Plain(twin)
    for k, (x,) in enumerate(rows()):
        plain.forward(k, [x], [True])
        (y,) = stage.forward(k, x, requires_grad=[True])
        plain.backward(k)
        stage.backward_input(k, gradients_of([y], k))
        stage.backward_weight(k)
    compare_gradients(twin, module)
    reasons = {f.name: f.reason for f in stage.report().fallback}
    assert reasons.keys() == {n for n, _ in module.named_parameters() if not n.startswith("free")}
    assert reasons["wrapped._orig_mod.0.weight"] == reasons["in_place.bias"] == "inside torch.compile"
    assert "by a call" in reasons["hidden.weight"]


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize(
    "wrap",
    [parametrizations.weight_norm, nn.utils.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal],
)
def test_computed_weights_fall_back(wrap):
    report = run_both_rebuilt(lambda: nn.Sequential(wrap(nn.Linear(6, 6)), nn.Tanh(), nn.Linear(6, 6)))
    assert "0.bias" in {f.name for f in report.fallback}
    assert not any(f.name.startswith("2.") for f in report.fallback)


def run_both_rebuilt(make):
    """As `run_both`, for modules that deepcopy refuses."""
    torch.manual_seed(0)
    module = make()
    torch.manual_seed(0)
    twin = make()
    stage, plain = SplitStage(module), Plain(twin)
    for k, (x,) in enumerate(rows()):
        plain.forward(k, [x], [True])
        (y,) = stage.forward(k, x, requires_grad=[True])
        plain.backward(k)
        stage.backward_input(k, gradients_of([y], k))
        stage.backward_weight(k)
        compare_gradients(twin, module)
    for a, b in zip(module.buffers(), twin.buffers(), strict=True):
        assert torch.equal(a, b)
    return stage.report()


def test_buffers_are_updated_once():
    report = run_both_rebuilt(
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Unflatten(2, (6, 1)), nn.Flatten(1, 3), nn.BatchNorm1d(18), nn.Tanh())
    )
    assert {f.name for f in report.fallback} == {"3.weight", "3.bias"}


def test_a_subclass_with_its_own_forward_falls_back_and_one_without_does_not():
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    class Named(nn.Linear):
        pass

    stage = run_both(lambda: nn.Sequential(Doubled(6, 6), Named(6, 6)), rows(), [True])
    assert {f.name: f.reason for f in stage.report().fallback} == {
        "0.weight": "Doubled.weight is used by code unknown here",
        "0.bias": "Doubled.bias is used by code unknown here",
    }


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_to_itself_is_split(batch_first, bias):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, dropout=0.2, bias=bias, batch_first=batch_first)
            self.add = nn.MultiheadAttention(6, 2, add_bias_kv=bias, add_zero_attn=True, batch_first=batch_first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.ones(x.shape[1 if batch_first else 0], x.shape[1 if batch_first else 0]).triu(1).bool()
            y, weights = self.attention(x, x, x, attn_mask=mask)
            return self.add(y, y, y, need_weights=False)[0] + weights.mean()

    report = run_both(Model, rows(), [True]).report()
    assert {f.name for f in report.fallback} == ({"add.bias_k", "add.bias_v"} if bias else set())


def test_attention_to_another_sequence_falls_back_and_its_share_is_told():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
            self.apart = nn.MultiheadAttention(6, 2, kdim=3, vdim=3, bias=False, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            memory = x.flip(1)
            return self.apart(self.attention(x, memory, memory)[0], memory[..., :3], memory[..., :3])[0]

    report = run_both(Model, rows(), [True]).report()
    # three separate weights are split, parts of one weight or one bias are not
    assert {f.name for f in report.fallback} == {"attention.in_proj_weight", "attention.in_proj_bias"}
    assert report.fallback_flops == 2 * 12 * (3 * 36 + 18)


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_layer_of_torch_is_split(norm_first):
    make = partial(nn.TransformerEncoderLayer, 6, 2, 12, batch_first=True, norm_first=norm_first)
    assert run_both(make, rows(), [True]).report().fallback == ()


def test_hooks_see_what_they_always_see():
    def make() -> nn.Module:
        module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.LayerNorm(6))
        module.seen = []
        for layer in module:
            layer.register_forward_pre_hook(lambda m, args: (args[0] * 1.5,))
            layer.register_forward_hook(lambda m, args, y: y + 1)
            layer.register_full_backward_hook(lambda m, gi, go: (gi[0] * 2,))
        module[2].weight.register_hook(lambda g: g * 0.5)
        module[3].weight.register_hook(lambda g: g * 0.5)
        for hooked in (module[0].weight, module[3].weight):
            hooked.register_post_accumulate_grad_hook(lambda p: module.seen.append(p.grad.clone()))
        return module

    torch.manual_seed(0)
    module = make()
    torch.manual_seed(0)
    twin = make()
    stage, plain = SplitStage(module), Plain(twin)
    batches = rows()
    for k, (x,) in enumerate(batches):
        (y,) = stage.forward(k, x, requires_grad=[True])
        stage.backward_input(k, gradients_of([y], k))
        assert len(module.seen) == 2 * k
        stage.backward_weight(k)
        plain.forward(k, [x], [True])
        plain.backward(k)
    compare_gradients(twin, module)
    assert len(module.seen) == len(twin.seen) == 6
    for k in (0, 2, 4):
        # W adds what it computes itself first
        assert torch.equal(module.seen[k], twin.seen[k + 1])
        assert torch.equal(module.seen[k + 1], twin.seen[k])


def test_lazy_modules_become_known():
    torch.manual_seed(0)
    module = nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))
    stage = SplitStage(module)
    (y,) = stage.forward(0, torch.randn(4, 5), requires_grad=[True])
    twin = copy.deepcopy(module)
    assert type(module[0]) is nn.Linear
    stage.backward_input(0, [torch.ones_like(y)])
    stage.backward_weight(0)
    assert stage.report().share == 1.0
    assert type(twin[0]) is nn.Linear


def test_a_stage_may_begin_by_writing_into_its_input():
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))
    twin = copy.deepcopy(nn.Sequential(first, second))
    x, dy = torch.randn(4, 6), torch.randn(4, 6)
    twin(x).backward(dy)
    stages = [SplitStage(first), SplitStage(second)]
    (y,) = stages[0].forward(0, x)
    stages[1].forward(0, y)
    stages[0].backward_input(0, stages[1].backward_input(0, [dy]))
    for stage in stages:
        stage.backward_weight(0)
    assert same(first.weight.grad, twin[0].weight.grad)
    assert same(second[1].weight.grad, twin[1][1].weight.grad)


def test_writing_into_what_the_stage_before_needs_is_found_out():
    first, second = SplitStage(nn.Sequential(nn.Linear(6, 6), nn.Tanh())), SplitStage(nn.ReLU(inplace=True))
    (y,) = first.forward(0, torch.randn(4, 6))
    second.forward(0, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.backward_input(0, second.backward_input(0, [torch.ones(4, 6)]))


def test_weights_changed_between_f_and_b_are_found_out():
    module = nn.Linear(6, 6)
    stage = SplitStage(module)
    stage.forward(0, torch.randn(4, 6), requires_grad=[True])
    with torch.no_grad():
        module.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stage.backward_input(0, [torch.ones(4, 6)])


def test_a_gradient_taken_inside_the_forward_is_refused_unless_kept_whole():
    class Force(nn.Module):
        """The output is a derivative of a network, as in models of energies."""

        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1))
            self.last = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                return self.last(torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)[0])

    stage = SplitStage(Force())
    with pytest.raises(RunError, match="keep_whole"):
        stage.forward(0, torch.randn(4, 6), requires_grad=[True])
    assert "forward" not in vars(stage.module.last)
    stage = run_both(Force, rows(), [True], keep_whole=["energy"])
    fallback = stage.report().fallback
    assert {f.name for f in fallback} == {"energy.0.weight", "energy.0.bias", "energy.2.weight"}
    assert {f.reason for f in fallback} == {"kept whole as asked"}


def test_a_shared_module_is_kept_whole_by_any_of_its_names():
    shared = nn.Linear(6, 6)
    stage = SplitStage(nn.Sequential(shared, nn.Sequential(nn.Tanh(), shared)), keep_whole=["1"])
    (y,) = stage.forward(0, torch.randn(4, 6))
    stage.backward_input(0, [torch.ones_like(y)])
    stage.backward_weight(0)
    assert {f.reason for f in stage.report().fallback} == {"kept whole as asked"}


def test_parameters_put_in_for_a_call_are_not_mistaken():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)
            self.delta = nn.Parameter(torch.randn(6, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            changed = {"weight": self.inner.weight + self.delta}
            return torch.func.functional_call(self.inner, changed, (x,))

    run_both(Model, rows(), [True])


def test_transforms_of_functions_fall_back():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(self.inner)(x)

    run_both(Model, rows(), [True])


def test_parameters_may_be_frozen_and_replaced_between_microbatches():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    twin = copy.deepcopy(module)
    stage, plain = SplitStage(module), Plain(twin)
    for k, (x,) in enumerate(rows()):
        for m in (module, twin):
            m[0].weight.requires_grad_(k != 1)
            if k == 2:
                m[2].weight = nn.Parameter(torch.full((6, 6), 0.5))
        plain.forward(k, [x], [True])
        (y,) = stage.forward(k, x, requires_grad=[True])
        plain.backward(k)
        stage.backward_input(k, gradients_of([y], k))
        stage.backward_weight(k)
        compare_gradients(twin, module)


def test_nothing_of_it_is_left_in_the_module():
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))
    before = [dict(vars(m)) for m in module.modules()]
    keys = list(module.state_dict())
    stage = SplitStage(module)
    (y,) = stage.forward(0, torch.randn(2, 6))
    assert [dict(vars(m)) for m in module.modules()] == before
    assert list(module.state_dict()) == keys
    pickle.loads(pickle.dumps(module))
    copied = copy.deepcopy(module)
    with torch.no_grad():
        copied[0].weight.zero_()
        assert not torch.equal(copied(torch.ones(2, 6)), module(torch.ones(2, 6)))
    stage.backward_input(0, [torch.ones_like(y)])
    assert [dict(vars(m)) for m in module.modules()] == before


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor")
@pytest.mark.parametrize("whole", [False, True], ids=["a layer", "the stage"])
def test_fully_sharded_modules_stay_whole(one_process, whole):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    twin = copy.deepcopy(module)
    fully_shard(module[0], mesh=one_process)
    if whole:
        fully_shard(module, mesh=one_process)
    stage = SplitStage(module)
    for k, (x,) in enumerate(rows()):
        (y,) = stage.forward(k, x, requires_grad=[True])
        dy = gradients_of([y], k)
        stage.backward_input(k, dy)
        stage.backward_weight(k)
        twin(x).backward(dy[0])
    for p, q in zip(twin.parameters(), module.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad)
    reasons = {f.name: f.reason for f in stage.report().fallback}
    assert reasons["0.weight"] == "sharded by FSDP"
    assert ("2.weight" in reasons) is whole


def test_data_parallel_wrappers_are_refused(one_process):
    wrapped = nn.Sequential(nn.parallel.DistributedDataParallel(nn.Linear(6, 6)))
    with pytest.raises(InvalidInput, match=r"DistributedDataParallel inside a stage \(0\)"):
        SplitStage(wrapped)


def test_dtensor_parameters_fall_back_and_are_right(one_process):
    mesh = one_process
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6), nn.LayerNorm(6))
    twin = copy.deepcopy(module)
    parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    stage, plain = SplitStage(module), Plain(twin)
    for k, (x,) in enumerate(rows()):
        plain.forward(k, [x], [True])
        (y,) = stage.forward(k, x, requires_grad=[True])
        wanted = plain.backward(k)
        (dx,) = stage.backward_input(k, gradients_of([y], k))
        assert module[0].weight.grad is None or k
        stage.backward_weight(k)
        assert torch.equal(dx, wanted[0])
    for p, q in zip(twin.parameters(), module.parameters(), strict=True):
        full = q.grad.full_tensor() if isinstance(q.grad, DTensor) else q.grad
        assert torch.equal(p.grad, full)
    assert isinstance(module[0].weight.grad, DTensor)
    assert {f.name for f in stage.report().fallback} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    # and a DTensor may be handed from stage to stage
    whole = SplitStage(nn.Tanh())
    handed = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    (y,) = whole.forward(0, handed, requires_grad=[True])
    (dx,) = whole.backward_input(0, [distribute_tensor(torch.ones(4, 6), mesh, [Replicate()])])
    assert isinstance(dx, DTensor)


def test_saved_tensors_may_be_kept_elsewhere():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    twin = copy.deepcopy(module)
    packed: list[torch.Size] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tensor.shape)
        return tensor.clone()

    stage = SplitStage(module)
    x, dy = torch.randn(4, 6), torch.randn(4, 6)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stage.forward(0, x, requires_grad=[True])
    assert packed.count(torch.Size([4, 6])) == 3
    stage.backward_input(0, [dy])
    stage.backward_weight(0)
    twin(x).backward(dy)
    compare_gradients(twin, module)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_complex_and_nested_tensors_fall_back():
    report = run_both(
        lambda: nn.Linear(6, 6, dtype=torch.complex64),
        [[torch.randn(4, 6, dtype=torch.complex64)] for _ in range(2)],
        [True],
    ).report()
    assert {f.name for f in report.fallback} == {"weight", "bias"}

    class Ragged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(torch.nested.as_nested_tensor([x[0, :2], x[1]])).to_padded_tensor(0.0)

    run_both(Ragged, rows(), [True])
