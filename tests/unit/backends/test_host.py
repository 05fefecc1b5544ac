"""What the operating system states, against other ways to ask it."""

from __future__ import annotations

import os

import pytest

from dayzero.backends import host


def test_memory_is_what_the_system_states() -> None:
    assert 0 < host.available_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_private_memory_follows_what_is_taken() -> None:
    host.trim()  # what was freed before and is taken again would not count
    before = host.private_memory()
    block = bytearray(os.urandom(1)) * (64 << 20)
    assert (host.private_memory() - before) / len(block) == pytest.approx(1, abs=0.1)


def test_a_control_group_can_allow_less(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"/proc/meminfo": "MemTotal:  100 kB\nMemAvailable:      64 kB\n",
             "/sys/fs/cgroup/memory.max": "40960\n", "/sys/fs/cgroup/memory.current": "8192\n"}
    monkeypatch.setattr(host, "_read", lambda path: texts.get(str(path), ""))
    assert host.available_memory() == 32768
    texts["/sys/fs/cgroup/memory.max"] = "max\n"
    assert host.available_memory() == 65536


@pytest.mark.parametrize(("text", "vendor", "model"), [
    ("processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n",
     "GenuineIntel", "Intel(R) Xeon(R)"),
    # arm64 states numbers: 0x41 is Arm, 0xd40 its Neoverse V1
    ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n", "0x41", "0xd40"),
])  # fmt: skip
def test_identity_is_the_processors_own(monkeypatch: pytest.MonkeyPatch, text: str, vendor: str, model: str) -> None:
    monkeypatch.setattr(host, "_read", lambda path: text)
    assert host.identity() == (vendor, model)


def test_cores_and_cache() -> None:
    assert host.cores() == len(os.sched_getaffinity(0))
    assert 1 << 18 <= host.cache_bytes() <= 1 << 31
