"""The account of a case, what is free, and what a command keeps of it."""

import os
import subprocess
import sys

import numpy as np
import pytest

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


FAULTS = """
import resource
import numpy as np
from segcal.memory import reuse_memory
{}
rooms = [np.ones(1 << 20) for _ in range(8)]  # of 8 MB
del rooms
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    rooms = [np.ones(1 << 20) for _ in range(8)]
    del rooms
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries are not told what to keep")
def test_memory_of_a_command_is_used_again_unless_the_environment_says_otherwise():
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    told = {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}

    def faults(call: str, more: dict[str, str]) -> int:
        words = [sys.executable, "-c", FAULTS.format(call)]
        return int(subprocess.run(words, env=plain | more, capture_output=True, text=True, check=True).stdout)

    kept, asked = faults("reuse_memory()", {}), faults("reuse_memory()", told)
    assert kept * 20 < asked
    assert faults("", {}) > 20 * kept
