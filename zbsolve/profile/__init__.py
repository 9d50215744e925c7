"""What was measured: the cost of every stage, and the links between ranks and to host memory."""

from zbsolve.profile.host import HostLink, HostLinkOverride
from zbsolve.profile.link import Link, LinkOverride
from zbsolve.profile.measured import MAX_STAGES, Profile
from zbsolve.profile.overlap import Overlap
from zbsolve.profile.source import ProfileSource, StageSpread
from zbsolve.profile.stage import StageCost

__all__ = [
    "MAX_STAGES",
    "HostLink",
    "HostLinkOverride",
    "Link",
    "LinkOverride",
    "Overlap",
    "Profile",
    "ProfileSource",
    "StageCost",
    "StageSpread",
]
