"""The account of a case, and what is free."""

import os

import numpy as np

from segcal import memory
from segcal.memory import FACTORS, VOXEL, Footprint


def test_the_account_of_a_case_by_hand():
    voxels = 5 * 7
    for stored, bytes_each in (("float16", 4), ("float32", 4), ("float64", 8), ("int16", 8)):
        needed = Footprint("apply").needed((3, 5, 7), np.dtype(stored))
        assert needed == FACTORS["apply"] * 3 * voxels * bytes_each + VOXEL * voxels
    assert Footprint().needed((3, 5, 7), np.dtype("f4")) == max(FACTORS.values()) * 12 * voxels + VOXEL * voxels


def test_what_is_free_is_the_least_of_machine_group_and_process(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 64000 kB\nMemAvailable: 48000 kB\n",
        "/proc/self/cgroup": "3:cpu:/x\n0::/jobs/7\n",
        "/sys/fs/cgroup/jobs/7/memory.max": "max\n",
        "/sys/fs/cgroup/jobs/memory.max": "20000000\n",
        "/sys/fs/cgroup/jobs/memory.current": "9000000\n",
        "/sys/fs/cgroup/jobs/memory.stat": "anon 1\ninactive_file 4000000\n",
    }
    monkeypatch.setattr(memory, "_read", lambda path: files.get(str(path), ""))
    assert memory.total_memory() == 20_000_000
    assert memory.free_memory() == 20_000_000 - (9_000_000 - 4_000_000)
    files["/proc/self/cgroup"] = "4:memory,hugetlb:/box\n"
    files |= {"/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "7000\n", "/sys/fs/cgroup/memory/box/memory.stat": ""}
    files["/sys/fs/cgroup/memory/box/memory.usage_in_bytes"] = "8000\n"
    assert (memory.total_memory(), memory.free_memory()) == (7000, 0)
    files["/proc/self/cgroup"] = ""
    assert (memory.total_memory(), memory.free_memory()) == (64_000 << 10, 48_000 << 10)
    del files["/proc/meminfo"]
    assert memory.total_memory() == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
