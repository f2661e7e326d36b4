"""The long description of the package: the README, whose links work where no repository is beside it."""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[((?:[^\[\]]|`[^`]*`)*)\]\((?!https?://|#)([^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    """Pages of `docs/` are those of the site; what the site does not have keeps its text without a link."""

    def update(self, metadata: dict) -> None:
        """Set the long description."""
        site = f"{metadata['urls']['Documentation']}/en/latest/"

        def absolute(found: re.Match[str]) -> str:
            text, target = found.groups()
            if not target.startswith("docs/"):
                return text
            page = re.sub(r"(^|/)README\.md$", r"\1index.html", target.removeprefix("docs/"))
            return f"[{text}]({site}{re.sub(r'[.](md|ipynb)(?=#|$)', '.html', page)})"

        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": LINK.sub(absolute, readme)}
