"""A build step: the first migration, composed from its sources for wheels and source distributions.

A checkout has no such file before its first release. An editable installation gets none either,
since it uses the sources.
"""

import runpy
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FIRST = "forebay/sql/migrations/0001_initial.sql"


class ComposedSchema(BuildHookInterface):
    """Adds the composed migration to a distribution.

    A checkout of a release or a source distribution has it already.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compose the file in a folder of its own."""
        source = Path(self.root) / "src"
        self._folder = tempfile.mkdtemp()
        if version == "editable" or (source / _FIRST).exists():
            return
        made = Path(self._folder) / "0001_initial.sql"
        compose = runpy.run_path(str(source / "forebay/sql/composer.py"))["compose"]
        made.write_text(compose(), encoding="utf-8")
        place = _FIRST if self.target_name == "wheel" else f"src/{_FIRST}"
        build_data["force_include"][str(made)] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove the folder."""
        shutil.rmtree(self._folder)
