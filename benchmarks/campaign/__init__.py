"""A campaign of hostile trials against segcal; :mod:`benchmarks.campaign.__main__` says how it is run."""
