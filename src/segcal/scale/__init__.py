"""Many cases: parts of a run, put together again, and the engines that work on them."""
