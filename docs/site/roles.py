"""Docstrings as the site shows them: roles of reStructuredText become plain code, doctests are left out."""

import re

import griffe

DOCTEST = re.compile(r"^ *>>> .*\n(?:^ *\S.*\n?)*", flags=re.MULTILINE)
ROLE = re.compile(r":(?:func|class|mod|data|meth|attr|math):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Rewrites every docstring once it is loaded."""

    def on_object(self, *, obj: griffe.Object, **options: object) -> None:
        """Replace the roles of one docstring."""
        if obj.docstring is not None:
            text = DOCTEST.sub("", obj.docstring.value)
            obj.docstring.value = ROLE.sub(r"`\1`", text).replace("``", "`")
