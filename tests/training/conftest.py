import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small only wait for a second thread, and for long where others use the cores as well."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
