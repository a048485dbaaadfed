"""A build step: the README for the package index, whose links and images are absolute.

hatchling runs it for every wheel and source distribution. The links name the tag of the version, so
the page of an old release shows what belongs to it.
"""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|#", re.IGNORECASE)


class AbsoluteLinks(MetadataHookInterface):
    """Adds the README to the metadata, with links to the repository that `[project.urls]` names."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the README of the distribution."""
        root = Path(self.root)
        text = (root / self.config.get("file", "README.md")).read_text(encoding="utf-8")
        repository = metadata["urls"]["Repository"].rstrip("/")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, repository, f"v{metadata['version']}", root),
        }


def absolute(text: str, repository: str, tag: str, root: Path) -> str:
    """Return a Markdown text with absolute links.

    Raises:
        ValueError: a link names a file that does not exist.
    """
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")

    def replaced(found: re.Match[str]) -> str:
        target = found["target"]
        if _ABSOLUTE.match(target):
            return found[0]
        path = root / target.partition("#")[0]
        if not path.exists():
            raise ValueError(f"the README links to {target}, which does not exist")
        if found["image"]:
            address = f"{raw}/{tag}/{target}"
        else:
            address = f"{repository}/{'tree' if path.is_dir() else 'blob'}/{tag}/{target}"
        return f"{found['image']}[{found['text']}]({address})"

    # What looks like a link in a code block is code.
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)
