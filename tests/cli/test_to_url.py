"""What is said of results that go to a URL; that they get there is tested with the commands (test_dispatch.py)."""

import sys

import pytest

from segcal.cli.to_url import naming
from segcal.errors import InputError


def test_what_is_printed_names_the_url_on_both_streams_and_afterwards_the_place(capsys):
    with naming("/tmp/a/results", "s3://b/c"):
        print("written to /tmp/a/results/x.json and /tmp/a/results")
        print("/tmp/a/results is odd", file=sys.stderr)
    print("/tmp/a/results")
    out, err = capsys.readouterr()
    assert out == "written to s3://b/c/x.json and s3://b/c\n/tmp/a/results\n"
    assert err == "s3://b/c is odd\n"


def test_a_mistake_names_the_url_too_and_others_stay_what_they_are():
    with pytest.raises(InputError, match=r"^s3://b/c/x holds y\.$"), naming("/tmp/a", "s3://b/c"):
        raise InputError("/tmp/a/x holds y.")
    with pytest.raises(InputError, match=r"^labels are odd\.$"), naming("/tmp/a", "s3://b/c"):
        raise InputError("labels are odd.")
    with pytest.raises(KeyError), naming("/tmp/a", "s3://b/c"):
        raise KeyError
