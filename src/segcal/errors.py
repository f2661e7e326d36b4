"""The exceptions of the package.

Messages have one form: ``<name> <what it is>, but <what is needed>. <What to do>.``
"""


class SegcalError(Exception):
    """Base of everything that segcal raises on purpose."""


class InputError(SegcalError, ValueError):
    """An argument or a file of the user's is not usable; the message says how to repair it."""


class ArtifactError(SegcalError):
    """A file that segcal wrote is missing, damaged, or of another version."""


class SuspicionWarning(UserWarning):
    """What was given is possible but seldom meant; the work goes on."""
