"""Docstrings as the site shows them: roles of reStructuredText become plain code, and doctests become code blocks."""

import re

import griffe

ROLE = re.compile(r":(?:func|class|mod|data|meth|attr|math):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **options: object) -> None:
        """Replace the roles of one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
