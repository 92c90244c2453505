"""The README of a wheel: on an index, links into the repository lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")
NOTE: Final = "The pages that this text names are in the source archive (sdist), in the folder `docs`."


def standalone(readme: str, source: str | None) -> str:
    """Return a README whose links do not depend on where it stands.

    Args:
        readme: The README of the repository.
        source: Where files of this version can be read, without the slash at the end; None if nowhere: links
            become plain text, and pictures are left out.
    """
    if source is not None:
        return LINK.sub(rf"\1[\2]({source}/\3)", readme)
    return LINK.sub(lambda link: "" if link[1] else link[2], readme).rstrip() + f"\n\n{NOTE}\n"


class StandaloneReadme(MetadataHookInterface):
    """Puts such a README into the metadata. `Source` of project.urls, if it is given, has the files."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README."""
        text = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": standalone(text, source)}
