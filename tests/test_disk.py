"""Reading regular files only, and writing all or nothing."""

from __future__ import annotations

import os
import stat

import pytest

from zbsolve import disk
from zbsolve.disk import ensure_writable, read_regular, write_atomic
from zbsolve.errors import FileFormatError, InvalidInput


def test_what_is_written_is_read(tmp_path):
    path = tmp_path / "a.json"
    write_atomic(path, b"first")
    write_atomic(str(path), b"second")
    assert read_regular(path) == b"second"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_new_file_gets_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path):
    usual, kept = tmp_path / "usual", tmp_path / "kept"
    old = os.umask(0o027)
    try:
        write_atomic(usual, b"x")
        kept.touch()
        kept.chmod(0o604)
        write_atomic(kept, b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(usual.stat().st_mode) == 0o640
    assert stat.S_IMODE(kept.stat().st_mode) == 0o604


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_atomic(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("broken", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, broken):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    def fail(_):
        raise broken

    monkeypatch.setattr(disk.os, "fsync", fail)
    with pytest.raises((FileFormatError, KeyboardInterrupt)) as caught:
        write_atomic(path, b"new")
    if isinstance(broken, OSError):
        assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_targets_that_are_no_files(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, reason in [
        (tmp_path, "is a directory; give the name of a file in it"),
        (tmp_path / "no" / "a", "there is no folder"),
        (fifo, "is not a regular file; use -"),
        (tmp_path / ("x" * 300), "cannot be written: File name too long"),
        ("a\0b", "cannot be written"),
    ]:
        for act in (ensure_writable, lambda p: write_atomic(p, b"x")):
            with pytest.raises(FileFormatError, match=reason):
                act(path)
    assert [p.name for p in tmp_path.iterdir()] == ["fifo"]


def test_a_device_takes_bytes_and_stays_a_device():
    write_atomic("/dev/null", b"x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_sources_that_are_no_files(tmp_path, monkeypatch):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path, reason in [
        (tmp_path, "is a directory"),
        (tmp_path / "none", "there is no such file"),
        (fifo, "is not a regular file"),
        ("/dev/zero", "is not a regular file"),
        ("a\0b", "cannot be read"),
        (tmp_path / ("x" * 300), "cannot be read"),
    ]:
        with pytest.raises(InvalidInput, match=reason):
            read_regular(path)
    large = tmp_path / "large"
    large.write_bytes(b"x" * 100)
    monkeypatch.setattr(disk, "MAX_FILE_BYTES", 99)
    with pytest.raises(FileFormatError, match="is larger than"):
        read_regular(large)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path):
    path = tmp_path / "secret"
    path.touch(mode=0o000)
    with pytest.raises(FileFormatError, match="cannot be read: Permission denied"):
        read_regular(path)


def test_a_refusal_by_the_system_is_one_clear_message(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.touch()

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk.os, "open", refuse)
    for act in (read_regular, lambda p: write_atomic(p, b"x")):
        with pytest.raises(FileFormatError, match="Permission denied"):
            act(path)
