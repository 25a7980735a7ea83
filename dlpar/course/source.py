"""Source code of dlpar, shown in a notebook."""

from __future__ import annotations

import html
import inspect
import re
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

_LAYOUT = (Path(__file__).parent / "source.css").read_text()

ROOT = Path(__file__).parents[2]
"""Folder that contains the package."""

FOR_TOOLS = re.compile(r"  # (?:noqa|type: ignore|fmt:).*?(?=  #|$)", re.MULTILINE)
"""Comments for a linter, a type checker or a formatter, hidden from students."""


class Source:
    """Source code of a function, class or module, with its file and line numbers."""

    def __init__(self, code: str, file: Path, first: int) -> None:
        self.code, self.first = code.rstrip("\n"), first
        self.where = f"{file}, lines {first} to {first + self.code.count(chr(10))}"

    def __repr__(self) -> str:
        return f"# {self.where}\n{self.code}"

    def _repr_html_(self) -> str:
        from jupyterlab_pygments import JupyterStyle
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer

        # JupyterStyle's colours are variables of the page, as in code cells, for the light and the dark
        # theme.
        look = {"style": JupyterStyle, "cssclass": "dlpar-source", "linenos": "inline"}
        form = HtmlFormatter(**look, linenostart=self.first)
        code = highlight(self.code, PythonLexer(), form)
        style = f"{form.get_style_defs('.dlpar-source')} {_LAYOUT}"
        return f"<style>{style}</style><p><code>{html.escape(self.where)}</code></p>{code}"


def show(what: Any) -> Source:
    """Show the source code of `what` in a notebook.

    Parameters
    ----------
    what : function, class, module or str
        Python object, or its dotted name, such as ``"dlpar.collectives.ring_allreduce"``.

    Raises
    ------
    TypeError
        If it has no Python source code.
    """
    try:
        found = resolve_name(what) if isinstance(what, str) else what
        found = inspect.unwrap(found) if callable(found) else found
        lines, first = inspect.getsourcelines(found)
        file = Path(inspect.getsourcefile(found) or "")
    except (TypeError, OSError, ValueError, ImportError, AttributeError):
        allowed = "a function, class or module written in Python, or its dotted name"
        raise TypeError(f"show: got {what!r}, allowed is {allowed}") from None
    place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else Path(file.name)
    return Source(FOR_TOOLS.sub("", "".join(lines)), place, max(first, 1))
