"""The exceptions of the package, and the import of what may not be installed.

Messages have one form: ``<name> <what it is>, but <what is needed>. <What to do>.`` They quote names that somebody else
chose. They go to terminals and into results, so they are cleaned here.
"""

import importlib
from types import ModuleType

from segcal.names import clean_message


class SegcalError(Exception):
    """Base of everything that segcal raises on purpose."""

    def __init__(self, message: str = "") -> None:
        super().__init__(clean_message(message))


class InputError(SegcalError, ValueError):
    """An argument or a file of the user's is not usable; the message says how to repair it."""


class MissingExtraError(InputError, ImportError):
    """A framework is not installed; the message says how it is."""


class ArtifactError(SegcalError):
    """A file that segcal wrote is missing, damaged, or of another version."""


class SuspicionWarning(UserWarning):
    """An input is possible but rarely intended; the work goes on."""


def load_extra(module: str, extra: str, who: str = "these files need") -> ModuleType:
    """Import a library that is installed with one of segcal's extras."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{module} is not installed, but {who} it. Install it with: pip install 'segcal[{extra}]'."
        ) from None
