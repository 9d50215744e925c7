"""Profiles as files: `zbsolve.profile/1`, JSON or TOML."""

from __future__ import annotations

from typing import Any

from zbsolve.disk import PathLike, read_regular, write_atomic
from zbsolve.files import shapes
from zbsolve.files.parse import located, parse
from zbsolve.files.text import json_bytes, toml_bytes
from zbsolve.profile import (
    HostLink,
    HostLinkOverride,
    Link,
    LinkOverride,
    Overlap,
    Profile,
    ProfileSource,
    StageCost,
    StageSpread,
)
from zbsolve.units import parse_bytes, parse_ns

__all__ = ["profile_bytes", "read_profile", "read_profile_bytes", "write_profile"]


def read_profile(path: PathLike) -> Profile:
    """Read a profile; a name that ends in ``.toml`` is TOML, any other JSON.

    Raises
    ------
    FileFormatError
        If it is no valid profile, with the JSON path.
    """
    return read_profile_bytes(read_regular(path), path)


def read_profile_bytes(data: bytes, name: object) -> Profile:
    """Read the content of a profile file; `name` is used as in `read_profile` and in messages."""
    toml = str(name).lower().endswith(".toml")
    return profile_from_shape(parse(data, name, shapes.ProfileFile, toml=toml), name, "$")


def write_profile(path: PathLike, profile: Profile) -> None:
    """Write a profile: TOML if the name ends in ``.toml``, else JSON."""
    toml = str(path).lower().endswith(".toml")
    write_atomic(path, toml_bytes(_file(profile)) if toml else profile_bytes(profile))


def profile_bytes(profile: Profile) -> bytes:
    """A profile as the bytes of its JSON file; fields at their defaults are left out."""
    return json_bytes(_file(profile))


def _file(profile: Profile) -> dict[str, Any]:
    return {"format": shapes.PROFILE, **profile_to_plain(profile)}


def profile_from_shape(shape: shapes.ProfileShape, name: object, where: str) -> Profile:
    """Turn what stands in a file into a profile; `where` is its JSON path."""
    stages = tuple(_stage(stage, name, f"{where}.stages[{i}]") for i, stage in enumerate(shape.stages))
    link = _link(shape.link, name, f"{where}.link")
    source = _source(shape.source, name, f"{where}.source")
    overlaps = tuple(_overlap(o, name, f"{where}.overlaps[{i}]") for i, o in enumerate(shape.overlaps))
    host = None if shape.host_link is None else _host_link(shape.host_link, name, f"{where}.host_link")
    with located(name, where):
        return Profile(stages=stages, link=link, name=shape.name, source=source, overlaps=overlaps, host_link=host)


def _amounts(shape: Any, name: object, where: str) -> dict[str, Any]:
    """The fields of a shape, durations and sizes read with their units."""
    values: dict[str, Any] = {}
    for field in shape.__struct_fields__:
        value = getattr(shape, field)
        if value is None:
            continue
        with located(name, f"{where}.{field}"):
            if field.endswith("_ns"):
                value = parse_ns(value, field)
            elif field.endswith(("_bytes", "bytes_per_second")):
                value = parse_bytes(value, field)
        values[field] = value
    return values


def _stage(shape: shapes.StageShape, name: object, where: str) -> StageCost:
    values = _amounts(shape, name, where)
    with located(name, where):
        return StageCost(**values)


def _override(shape: shapes.OverrideShape, name: object, where: str) -> LinkOverride:
    values = _amounts(shape, name, where)
    with located(name, where):
        return LinkOverride(**values)


def _overlap(shape: shapes.OverlapShape, name: object, where: str) -> Overlap:
    values = _amounts(shape, name, where)
    with located(name, where):
        return Overlap(**values)


def _link(shape: shapes.LinkShape, name: object, where: str) -> Link:
    values = _amounts(shape, name, where)
    values["overrides"] = tuple(_override(o, name, f"{where}.overrides[{i}]") for i, o in enumerate(shape.overrides))
    with located(name, where):
        return Link(**values)


def _host_link(shape: shapes.HostLinkShape, name: object, where: str) -> HostLink:
    values = _amounts(shape, name, where)
    values["overrides"] = tuple(
        _host_override(o, name, f"{where}.overrides[{i}]") for i, o in enumerate(shape.overrides)
    )
    with located(name, where):
        return HostLink(**values)


def _host_override(shape: shapes.HostOverrideShape, name: object, where: str) -> HostLinkOverride:
    values = _amounts(shape, name, where)
    with located(name, where):
        return HostLinkOverride(**values)


def _spread(shape: shapes.SpreadShape, name: object, where: str) -> StageSpread:
    return StageSpread(**_amounts(shape, name, where))


def _source(shape: shapes.SourceShape, name: object, where: str) -> ProfileSource:
    with located(name, where):
        return ProfileSource(
            host=shape.host,
            device=shape.device,
            split=shape.split,
            versions=tuple(shape.versions.items()),
            samples=shape.samples,
            spread=tuple(_spread(s, name, f"{where}.spread[{i}]") for i, s in enumerate(shape.spread)),
            note=shape.note,
        )


def profile_to_plain(profile: Profile) -> dict[str, Any]:
    """A profile as plain values, without what is at its default."""
    link, source = profile.link, profile.source
    plain: dict[str, Any] = {
        "name": profile.name,
        "link": _known(link, "latency_ns", "bytes_per_second", "queueing")
        | {"overrides": [_known(o, *LinkOverride.__slots__) for o in link.overrides]},
        "source": _known(source, "host", "device", "split")
        | {
            "versions": dict(source.versions),
            "samples": source.samples,
            "spread": [{field: getattr(s, field) for field in StageSpread.__slots__} for s in source.spread],
            "note": source.note,
        },
    }
    plain = {key: _without_defaults(value) for key, value in plain.items()}
    plain["stages"] = [_stage_to_plain(stage) for stage in profile.stages]
    plain["overlaps"] = [_known(overlap, *Overlap.__slots__) for overlap in profile.overlaps]
    order = ("name", "stages", "overlaps", "link", "source")
    plain = {key: plain[key] for key in order if plain[key]}
    if (host := profile.host_link) is not None:  # written even where a copy takes no time: without it there is none
        known = _known(host, "latency_ns", *_COPY_RATES)
        known["overrides"] = [_known(o, *HostLinkOverride.__slots__) for o in host.overrides]
        plain["host_link"] = _without_defaults(known)
    return plain


_COPY_RATES = ("to_host_bytes_per_second", "from_host_bytes_per_second")
_OPTIONAL = ("recompute_ns", "checkpoint_bytes", "offload_bytes")
_WRITTEN = ("forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns", *_OPTIONAL)
"""What is written even where it is 0: it has no default, or another one."""


def _stage_to_plain(stage: StageCost) -> dict[str, Any]:
    plain = {field: getattr(stage, field) for field in StageCost.__slots__}
    if stage.backward_ns == stage.backward_input_ns + stage.backward_weight_ns:
        del plain["backward_ns"]
    for field in _OPTIONAL:
        if plain[field] is None:
            del plain[field]
    return {key: value for key, value in plain.items() if key in _WRITTEN or value}


def _known(thing: object, *fields: str) -> dict[str, Any]:
    """Fields by name, without those that are None (which TOML cannot say)."""
    return {field: value for field in fields if (value := getattr(thing, field)) is not None}


def _without_defaults(value: Any) -> Any:
    return {k: v for k, v in value.items() if v not in ("", 0, [], {}, None)} if isinstance(value, dict) else value
