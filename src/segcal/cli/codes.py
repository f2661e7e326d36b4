"""Exit codes of the commands."""

DONE, USER_ERROR, SOME_FAILED, INTERRUPTED = 0, 2, 3, 130
