from pathlib import Path

import pytest

from segcal.errors import InputError
from segcal.memory import check_memory, memory_limit


def test_half_of_the_memory_is_the_limit():
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) << 10
    assert memory_limit() == pytest.approx(total / 2, rel=0.01)


@pytest.mark.parametrize(("needed", "said"), [(3 << 30, r"3\.0 GiB"), (2**63, "more memory than any machine has")])
def test_what_does_not_fit_is_refused_with_its_size(needed, said):
    with pytest.raises(InputError, match=f"case needs {said}, but at most 2.0 GiB .* can be used. Cut it."):
        check_memory("case", needed, 2 << 30, "Cut it.")
    check_memory("case", 2 << 30, 2 << 30, "Cut it.")
