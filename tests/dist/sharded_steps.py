"""Two processes that share tensor-parallel weights step with post-validation; prints "fine" when both are right."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SHAPE = (8, 4)
LIMIT = 1.0


def weights():
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(SHAPE, generator=generator) for _ in range(3)]


def gradient(step, index):
    generator = torch.Generator().manual_seed(10 * step + index)
    found = torch.randn(SHAPE, generator=generator) * (3.0 if step == 1 else 0.01)
    if step == 2 and index == 0:
        found[5, 1] = float("inf")  # lies in one shard only
    return found


def main(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    from zbsolve.executor.optimizer import PostValidatedOptimizer, synchronous_step

    mesh = init_device_mesh("cpu", (2,))
    spread = [[Shard(0)], [Replicate()], None]
    place = [lambda t, p=p: t.clone() if p is None else distribute_tensor(t.clone(), mesh, p) for p in spread]
    checks = {"max_grad_norm": LIMIT, "check_overflow": True}
    for undo in ("snapshot", "inverse"):
        own = [torch.nn.Parameter(put(w)) for put, w in zip(place, weights(), strict=True)]
        plain = [torch.nn.Parameter(w) for w in weights()]
        optimizer, reference = torch.optim.AdamW(own, lr=0.1), torch.optim.AdamW(plain, lr=0.1)
        heard = []

        class Echo:
            """The position after this one, which has no parameters and finds what the prefix says."""

            def send(self, to, words):
                self.words = words

            def receive(self, source):
                return self.words

        stepper = PostValidatedOptimizer(optimizer, rank=0, ranks=2, channel=Echo(), undo=undo, **checks)
        for step in range(4):
            for index, (p, q, put) in enumerate(zip(own, plain, place, strict=True)):
                p.grad, q.grad = put(gradient(step, index)), gradient(step, index)
            stepper.step_begin()
            held = stepper.held_bytes()
            if step == 0:
                one = 4 * SHAPE[0] * SHAPE[1]
                assert held.gradients == one // 2 + one + one, held
                assert held.parameters == (0 if undo == "inverse" else held.gradients), held
            heard.append(stepper.validate().verdict.value)
            wanted, _, _ = synchronous_step([reference], **checks)
            assert heard[-1] == wanted, (step, heard)
        assert heard == ["kept", "clipped", "skipped", "kept"], heard
        for p, q in zip(own, plain, strict=True):
            whole = p.full_tensor() if hasattr(p, "full_tensor") else p
            torch.testing.assert_close(whole, q, rtol=1e-6, atol=1e-6)

        # a step that proves wrong: here the position after this one reports an overflow
        before = [p.detach().clone() for p in own]
        for index, (p, put) in enumerate(zip(own, place, strict=True)):
            p.grad = put(gradient(0, index))
        stepper.step_begin()
        step, _, squares, wide, _ = stepper._channel.words
        stepper._channel.words = (step, 1.0, squares, wide, 1.0)
        assert stepper.validate().undone
        for p, b in zip(own, before, strict=True):
            torch.testing.assert_close(p.detach(), b, rtol=1e-5 if undo == "inverse" else 0, atol=1e-6 * (undo == "inverse"))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1],), 2)
    print("fine")
