import os
import signal
import subprocess
import sys

import psutil
import pytest

PARENT = """
import sys, time
from multiprocessing import get_context
from segcal.parent import follow_parent

def child():
    follow_parent()
    print("here", flush=True)
    time.sleep(100)

if __name__ == "__main__":
    process = get_context("spawn").Process(target=child, daemon=True)
    process.start()
    print(process.pid, flush=True)
    time.sleep(100)
"""


@pytest.fixture
def family(tmp_path):
    """A process and the one that it started."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    assert parent.stdout.readline().strip() == "here"
    yield parent, child
    parent.kill()
    parent.wait()
    parent.stdout.close()


def test_a_process_ends_when_the_one_that_started_it_is_killed(family):
    parent, child = family
    parent.kill()
    parent.wait()
    child.wait(timeout=30)


def test_an_interruption_is_left_to_the_parent(family):
    _, child = family
    os.kill(child.pid, signal.SIGINT)
    with pytest.raises(psutil.TimeoutExpired):
        child.wait(timeout=0.5)
