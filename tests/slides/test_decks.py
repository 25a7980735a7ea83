"""A deck for each lab, in one shape, whose questions, panel and sources are the lab's own; nothing is executed here."""

from __future__ import annotations

import ast
import re

import pytest

from dlpar import lab
from slides.decks import NAMES, ROOT, asked, cells, code, kind, of_lab, of_section, of_slides, sections

SHAPE = ["title", "why", "picture", "live", "result", "field", "exercise"]

each_deck = pytest.mark.parametrize("name", NAMES)


def test_every_lab_has_its_deck():
    assert NAMES == sorted(path.name for path in (ROOT / "labs").glob("[0-9]*.ipynb"))


@each_deck
def test_a_deck_has_all_sections_in_order_on_six_to_nine_slides(name):
    slides = of_slides(name)
    assert sections(slides) == SHAPE and 6 <= len(slides) <= 9
    assert slides[0][1][0]["source"].splitlines()[0] == of_lab(name)[0]["source"].splitlines()[0]


@each_deck
def test_one_key_press_goes_from_slide_to_slide(name):
    """What stands below a heading is a layer of its slide, which deck mode does not stop at."""
    for cell in cells(ROOT / "slides" / name):
        layer = cell["metadata"].get("jupyterlab-slideshow", {}).get("layer")
        assert (kind(cell), layer) in {("skip", None), ("slide", None), (None, "slide")}, cell["id"]


@each_deck
def test_a_deck_is_kept_without_results(name):
    kept = [
        cell for cell in cells(ROOT / "slides" / name) if cell.get("outputs") or cell.get("execution_count")
    ]
    assert kept == []


@each_deck
def test_the_question_put_to_the_class_is_a_prediction_of_the_lab(name):
    (slide,) = of_section(name, "why")
    quoted = re.findall(r"^(?:- |\*\*)(.+?)(?:\*\*)?$", slide["source"], flags=re.M)
    assert quoted and not [line for line in quoted if line not in asked(name)]


@each_deck
def test_the_panel_is_the_labs_own_and_heads_its_slide_with_its_question(name):
    heading, cell = of_section(name, "live")
    own, of_the_lab = panel_of([cell]), panel_of(of_lab(name))
    assert ast.unparse(own.args[0]).startswith(ast.unparse(of_the_lab.args[0]))
    alone = ("prediction", "recording")  # a student's own, and for before she presses Run
    assert keywords(own) == {name: value for name, value in keywords(of_the_lab).items() if name not in alone}
    assert cell["metadata"]["tags"] == ["panel"]
    assert heading["source"] == f"## {ast.literal_eval(keywords(own)['question'])}"


def panel_of(found):
    """The first call that makes a panel."""
    calls = [
        node for source in code(found) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
    ]
    return next(call for call in calls if ast.unparse(call.func) == "lab.Panel")


def keywords(call):
    """Keyword arguments of a call, as they are written."""
    return {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}


@each_deck
def test_what_a_result_says_is_computed(name):
    """Of pictures and results only the heading is written down."""
    for section, (heading, *below) in of_slides(name):
        if section in ("picture", "result"):
            assert re.fullmatch(r"## .+", heading["source"])
            assert below and {cell["cell_type"] for cell in below} == {"code"}


@each_deck
def test_what_the_field_did_is_the_labs_table_in_short(name):
    heading, cell = of_section(name, "field")
    number = name.partition("_")[0]
    assert heading["source"] == "## What the field did"
    assert cell["source"] == f'lab.field("{number}", slide=True)'
    assert f'lab.field("{number}")' in code(of_lab(name))
    assert 2 <= len(lab.field(number, slide=True).data.splitlines()) - 2 <= 4


@each_deck
def test_the_exercise_is_the_labs(name):
    (slide,) = of_section(name, "exercise")
    function = re.search(r"\*\*Build\*\* `(\w+)\(", slide["source"]).group(1)
    assert any(f"def {function}(" in source for source in code(of_lab(name)))
