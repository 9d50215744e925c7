"""Receive buffers that are used again and again."""

from __future__ import annotations

import torch

from zbsolve.executor.boundary import TensorSpec
from zbsolve.executor.transports.protocol import Tensors

__all__ = ["Slots"]

_ALIGNMENT = 64


class Slots:
    """Receive buffers of one direction: storages that tensors of any boundary are laid into."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._storages: dict[int, torch.Tensor] = {}
        self._views: dict[tuple[int, tuple[TensorSpec, ...]], Tensors] = {}
        self.addresses: set[int] = set()

    def views(self, slot: int, specs: tuple[TensorSpec, ...]) -> Tensors:
        """The slot as tensors of these shapes; made once."""
        found = self._views.get((slot, specs))
        if found is None:
            places = []
            size = 0
            for spec in specs:
                places.append(size)
                size += -(-spec.bytes // _ALIGNMENT) * _ALIGNMENT
            storage = self._storages.get(slot)
            if storage is None or len(storage) < size:
                if storage is not None:
                    self.addresses.discard(storage.untyped_storage().data_ptr())
                    self._views = {key: views for key, views in self._views.items() if key[0] != slot}
                storage = self._storages[slot] = torch.empty(size, dtype=torch.uint8, device=self._device)
                if size:
                    self.addresses.add(storage.untyped_storage().data_ptr())
            found = tuple(
                storage[at : at + spec.bytes].view(spec.dtype).view(spec.shape)
                for at, spec in zip(places, specs, strict=True)
            )
            self._views[slot, specs] = found
        return found
