"""Cores that a process has, on trees of files as kernels show their control groups."""

from __future__ import annotations

import os

import pytest

from jitcl.cores import usable_cores

V1 = "11:memory:{0}\n4:cpu,cpuacct:{0}\n1:name=systemd:{0}\n"
DOCKER = "/docker/5af1"


@pytest.fixture(autouse=True)
def eight_of_many(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def tree(root, groups: str, **files: str):
    """A root where a process is in some groups; files: "a/b" under /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.mark.parametrize(("groups", "files", "cores"), [
    pytest.param("0::/\n", {"cpu.max": "200000 100000\n"}, 2, id="docker --cpus 2"),
    pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 2, id="one and a half"),
    pytest.param("0::/\n", {"cpu.max": "10000 100000\n"}, 1, id="a tenth"),
    pytest.param("0::/\n", {"cpu.max": "30000 10000\n"}, 3, id="another period"),
    pytest.param("0::/\n", {"cpu.max": "6400000 100000\n"}, 8, id="more than the affinity has"),
    pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, 8, id="no bound"),
    pytest.param("0::/\n", {}, 8, id="the system's own group, which has no such file"),
    pytest.param("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3,
                 id="a bound on a group around"),
    pytest.param("0::/a/b\n", {"a/b/cpu.max": "300000 100000", "a/cpu.max": "400000 100000"}, 3,
                 id="the least of several"),
    pytest.param("0::/a\n", {"a/cpu.max": "max 100000\n", "b/cpu.max": "100000 100000\n"}, 8,
                 id="another's bound"),
    pytest.param(f"0::{DOCKER}\n", {"cpu.max": "200000 100000\n"}, 2, id="the host's path"),
    pytest.param("0::/../a\n", {"cpu.max": "200000 100000\n"}, 2, id="a path from outside"),
    pytest.param("0::/\n", {"cpu.max": "\n"}, 8, id="an empty file"),
    pytest.param("0::/\n", {"cpu.max": "100000 0\n"}, 8, id="no period"),
    pytest.param(V1.format("/") + "0::/\n", {"cpu,cpuacct/cpu.cfs_quota_us": "500000\n",
                                             "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 5,
                 id="version 1"),
    pytest.param(V1.format(DOCKER), {"cpu/cpu.cfs_quota_us": "250000\n",
                                     "cpu/cpu.cfs_period_us": "100000\n"}, 3,
                 id="version 1, the host's path"),
    pytest.param(V1.format("/a"), {"cpu/a/cpu.cfs_quota_us": "-1\n",
                                   "cpu/a/cpu.cfs_period_us": "100000\n"}, 8,
                 id="version 1, no bound"),
    pytest.param(V1.format("/") + "0::/x\n", {"unified/x/cpu.max": "400000 100000\n"}, 4,
                 id="version 2 beside version 1"),
    pytest.param("what\n", {"cpu.max": "200000 100000\n"}, 8, id="a file of another kind"),
])
def test_a_control_group_bounds_the_cores(tmp_path, groups, files, cores):
    assert usable_cores(tree(tmp_path, groups, **files)) == cores


def test_without_control_groups_the_affinity_counts(tmp_path, monkeypatch):
    assert usable_cores(tmp_path) == 8
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == 64
