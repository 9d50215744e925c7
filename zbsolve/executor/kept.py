"""What forwards change besides what they return: buffers and random states, noted to be put back.

A forward may write into a buffer, or assign a new tensor to its name, so a buffer is found again by its
owner and name, and gets both back, the tensor and its values::

    self.mean.mul_(0.9)              the tensor of before, with other values
    self.mean = 0.9 * self.mean      another tensor under the same name

Plain attributes are no buffers: nobody can tell which of them a forward has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["KeptBuffers", "KeptRandomState"]


class KeptBuffers:
    """The buffers of modules as they are now.

    Parameters
    ----------
    modules
        With all that is inside them.
    """

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        # those without buffers, too: they may have come by one when this is put back
        self._owners = [inner for module in modules for inner in module.modules()]
        self._names = {id(owner): dict(owner._buffers) for owner in self._owners if owner._buffers}
        tensors = {id(b): b for names in self._names.values() for b in names.values() if b is not None}
        self._values = [(b, b.detach().clone()) for b in tensors.values()]

    def put_back(self) -> None:
        """Every name has its tensor again, and every tensor its values; names that have come since are gone."""
        for tensor, values in self._values:
            if tensor.shape == values.shape and tensor.dtype is values.dtype:
                # as the norms' own kernels write it: autograd, which may have saved the buffer, does not count this
                tensor.data.copy_(values)
            else:
                # resized in place
                tensor.data = values.clone()
        for owner in self._owners:
            names = self._names.get(id(owner), {})
            if names or owner._buffers:
                owner._buffers.clear()
                owner._buffers.update(names)


class KeptRandomState:
    """The generators that torch draws from by default, on the host and on one device.

    Parameters
    ----------
    device
        Of the stages.
    """

    def __init__(self, device: torch.device) -> None:
        self._host = torch.get_rng_state()
        self._device = device
        self._on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back(self) -> None:
        """They draw again what they have drawn since."""
        torch.set_rng_state(self._host)
        if self._on_device is not None:
            torch.cuda.set_rng_state(self._on_device, self._device)
