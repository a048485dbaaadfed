"""Shows the doctests in docstrings as code on the documentation site.

An extension of Griffe, named in mkdocs.yml.
"""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Put each doctest that is not in an Examples section into a block of code."""

    def on_instance(self, *, obj: griffe.Object, **_kwargs: Any) -> None:  # type: ignore[override]  # called by name
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """Return a docstring whose doctests are fenced."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        f"```pycon\n{each}\n```" if each.startswith(">>> ") else each for each in paragraphs
    )
