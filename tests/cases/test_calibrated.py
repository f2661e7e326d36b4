import json

from segcal.cases.calibrated import MARKER, read_marker


def test_only_what_segcal_applied_is_calibrated(tmp_path):
    assert read_marker(tmp_path) is None
    (tmp_path / MARKER).write_text(json.dumps({"camera": 1}))
    assert read_marker(tmp_path) is None
    (tmp_path / MARKER).write_text(json.dumps({"format": "segcal-applied", "version": 2}))
    assert read_marker(tmp_path) == {"format": "segcal-applied", "version": 2}
