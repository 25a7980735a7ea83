"""Packing of code that a student typed, so that a rank can run it and quote its lines.

The processes that guard a job import this module, so cloudpickle is loaded only when something is packed.
"""

from __future__ import annotations

import base64
import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

_INSTALLED = ("<frozen ", *(os.path.dirname(p) + os.sep for p in (os.path.dirname(__file__), os.__file__)))


def is_installed(file: str) -> bool:
    """Return whether a frame's file belongs to Python, a package or dlpar.

    A notebook's cell does not.
    """
    return file.startswith(_INSTALLED) or "/site-packages/" in file or "/dist-packages/" in file


def pack(function: Callable, arguments: tuple = ()) -> bytes:
    """Pack a function and its arguments, the source lines of the notebook's cells, and the module path.

    So a function from a file beside the notebook also works.
    """
    import cloudpickle

    known = linecache.cache.items()
    cells = {n: entry for n, entry in known if len(entry) == 4 and (n.startswith("<") or "ipykernel" in n)}
    # The lines come first, so that even a function that fails to unpickle is quoted.
    return cloudpickle.dumps([sys.path, cells, cloudpickle.dumps((function, arguments))])


def unpack(body: bytes) -> tuple[Callable, tuple]:
    """Unpack the function and its arguments. Tracebacks through the function show the cell's own lines."""
    import cloudpickle

    path, cells, call = cloudpickle.loads(body)
    sys.path += [folder for folder in path if folder not in sys.path]
    # No time stamp, so no check against a file.
    linecache.cache |= {name: (size, None, lines, full) for name, (size, _, lines, full) in cells.items()}
    return cloudpickle.loads(call)


def as_part(scheme: Any) -> Any:
    """Return a student's scheme as an experiment's ``sync``. Values other than code stay unchanged."""
    if not callable(scheme):
        return scheme
    name = getattr(scheme, "__name__", type(scheme).__name__)
    return {"scheme": "own", "name": name, "code": base64.b64encode(pack(scheme)).decode()}


def from_part(code: str) -> Callable:
    """Unpack the result of :func:`as_part`. Only a rank does this, because unpickling runs code."""
    return unpack(base64.b64decode(code))[0]
