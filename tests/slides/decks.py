"""Decks and labs as tests read them: cells, calls and rows."""

from __future__ import annotations

import ast
import json
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.name for path in (ROOT / "slides").glob("[0-9]*.ipynb"))
Cell = dict[str, Any]


def cells(path: Path) -> list[Cell]:
    """The cells of a notebook, their source as one string."""
    return [{**cell, "source": "".join(cell["source"])} for cell in json.loads(path.read_text())["cells"]]


def of_slides(name: str) -> list[tuple[str, list[Cell]]]:
    """The slides of a deck in order: section, and the cells on it."""
    shown = [cell for cell in cells(ROOT / "slides" / name) if kind(cell) != "skip"]
    starts = [number for number, cell in enumerate(shown) if kind(cell) == "slide"]
    found = [shown[begin:end] for begin, end in zip(starts, [*starts[1:], None])]
    return [(slide[0]["metadata"]["tags"][0], slide) for slide in found]


def kind(cell: Cell) -> str | None:
    """What the deck mode makes of a cell."""
    return cell["metadata"].get("slideshow", {}).get("slide_type")


def sections(slides: list[tuple[str, list[Cell]]]) -> list[str]:
    """The sections of a deck in order, each once."""
    return [section for section, _ in groupby(section for section, _ in slides)]


def of_section(name: str, section: str) -> list[Cell]:
    """All cells of the slides of one section."""
    return [cell for found, slide in of_slides(name) if found == section for cell in slide]


def of_lab(name: str) -> list[Cell]:
    """The cells of the lab with the deck's name."""
    return cells(ROOT / "labs" / name)


def code(found: list[Cell]) -> list[str]:
    """Sources of code cells."""
    return [cell["source"] for cell in found if cell["cell_type"] == "code"]


def asked(name: str) -> str:
    """All that a lab's predictions ask and offer, one line each."""
    calls = [
        call
        for source in code(of_lab(name))
        for call in ast.walk(ast.parse(source))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "lab.predict"
    ]
    return "\n".join(str(n.value) for call in calls for n in ast.walk(call) if isinstance(n, ast.Constant))
