"""Exit codes of the commands."""

# ALARM: the command did its work, and what it found is bad news: a promise is broken, a calibrator no longer applies.
DONE, USER_ERROR, SOME_FAILED, ALARM, INTERRUPTED = 0, 2, 3, 4, 130
