"""Whether a file of source is installed, dlpar's own included, or is of the one who runs it.  Standard library only."""

from __future__ import annotations

import os

_BEGINNINGS = ("<frozen ", os.path.dirname(__file__) + os.sep, os.path.dirname(os.__file__) + os.sep)
_PACKAGES = ("/site-packages/", "/dist-packages/")


def is_installed(file: str) -> bool:
    """Whether a frame's file belongs to Python, a package or dlpar; a notebook's cell, say, does not."""
    return file.startswith(_BEGINNINGS) or any(folder in file for folder in _PACKAGES)
