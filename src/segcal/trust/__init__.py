"""From calibrated voxels to structures, cases and streams of cases: estimates, intervals, guarantees, a watch."""
