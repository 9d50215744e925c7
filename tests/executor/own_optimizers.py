"""Optimizers as users write them, each with a habit that makes undoing harder."""

from __future__ import annotations

from collections import deque

import torch


class WritesGradients(torch.optim.Optimizer):
    """Old style: decay added to the gradient in place, behind autograd's back."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.data.add_(p.data, alpha=0.1)
                    p.data.add_(p.grad.data, alpha=-group["lr"])


class WritesGroups(torch.optim.Optimizer):
    """Keeps running values in its groups and counts in an attribute, as learning-rate-free methods do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "distance": 1.0, "sum": torch.zeros(()), "past": []})
        self.calls = 0
        self.history = []
        self.average = None

    @torch.no_grad()
    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["distance"] = group["distance"] * 1.1
            group["past"].append(torch.full((2,), group["distance"]))
            for p in group["params"]:
                if p.grad is None:
                    continue
                group["sum"] += p.grad.float().sum()
                p.add_(p.grad, alpha=-group["lr"] * group["distance"] / self.calls)
                if self.average is None:
                    self.average = torch.zeros(())
                self.average = self.average * 0.9 + p.float().mean()
                p.sub_(self.average.to(p.dtype))
        self.history.append(float(group["sum"]))

    def state_dict(self):
        return {**super().state_dict(), "own": (self.calls, list(self.history), self.average)}


class Memory:
    """An object with tensors inside, as preconditioners are."""

    def __init__(self, like):
        self.sum = torch.zeros_like(like)
        self.count = 0

    def __repr__(self):
        return f"{self.count} {self.sum.tolist()}"

    def __eq__(self, other):
        return repr(self) == repr(other)

    def __hash__(self):
        return id(self)


class KeepsObjects(torch.optim.Optimizer):
    """State in objects of its own making, a queue of the latest sizes in an attribute."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.latest = deque(maxlen=2)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                memory = self.state[p].setdefault("memory", Memory(p))
                memory.sum.add_(p.grad)
                memory.count += 1
                self.latest.append(float(p.grad.abs().sum()))
                p.add_(memory.sum, alpha=-group["lr"] * sum(self.latest) / memory.count)

    def state_dict(self):
        return {**super().state_dict(), "own": list(self.latest)}


class ReplacesState(torch.optim.Optimizer):
    """Puts a new tensor into its state at every step instead of changing the old one; nested, too."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                momentum = state.get("momentum", torch.zeros_like(p)) * 0.9 + p.grad
                state["momentum"] = momentum
                last = state.setdefault("last", {})
                last["two"] = [momentum.clone(), *last.get("two", [])[:1]]
                state["n"] = state.get("n", 0) + 1
                for older in last["two"]:
                    p.add_(older, alpha=-group["lr"] / state["n"])


class Wraps(torch.optim.Optimizer):
    """Slow weights around an inner optimizer that it holds in an attribute."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.Adam(self.param_groups[0]["params"], lr=lr)
        self.slow = [p.detach().clone() for p in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
        for p, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            slow.lerp_(p, 0.5)
            p.copy_(slow)

    def state_dict(self):
        return {**super().state_dict(), "own": (self.inner.state_dict(), self.slow)}


class MasterWeights(torch.optim.Optimizer):
    """Steps on float32 copies that an inner optimizer holds, and rounds them into the parameters."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})
        masters = [torch.nn.Parameter(p.detach().float()) for p in self.param_groups[0]["params"]]
        self.inner = torch.optim.AdamW(masters, lr=lr)

    @torch.no_grad()
    def step(self, closure=None):
        pairs = list(zip(self.param_groups[0]["params"], self.inner.param_groups[0]["params"], strict=True))
        for p, master in pairs:
            master.grad = None if p.grad is None else p.grad.float()
        self.inner.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.inner.step()
        for p, master in pairs:
            p.copy_(master)

    def state_dict(self):
        masters = [p.detach() for p in self.inner.param_groups[0]["params"]]
        return {**super().state_dict(), "own": (self.inner.state_dict(), masters)}
