"""How messages get from rank to rank: in one process (threads), or over `torch.distributed`."""

from __future__ import annotations

from zbsolve.executor.transports.distributed import Distributed
from zbsolve.executor.transports.in_process import InProcess
from zbsolve.executor.transports.protocol import Endpoint, Mail, Stopped, Transport

__all__ = ["Distributed", "Endpoint", "InProcess", "Mail", "Stopped", "Transport"]
