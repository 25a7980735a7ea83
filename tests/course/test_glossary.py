"""The glossary is complete, one entry a term, and told where it is needed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dlpar.course.glossary import glossary, term, terms, tooltips

LABS = Path(__file__).parents[2] / "labs"


def test_every_term_has_a_chinese_name_of_its_own_a_sentence_and_a_lab_that_uses_it():
    found = terms().values()
    assert len(found) >= 60 and len({entry.zh for entry in found}) == len(found)
    texts = {path.name[:2]: path.read_text().lower().replace("-", "") for path in LABS.glob("*.ipynb")}
    for entry in found:
        assert re.search("[\u4e00-\u9fff]", entry.zh) and entry.means.endswith(".") and len(entry.means) < 120
        if entry.lab in texts:
            words = entry.name.lower().replace("-", "").split()
            assert all(word[:6] in texts[entry.lab] for word in words), (
                f"lab {entry.lab} does not speak of {entry.name}"
            )


def test_a_term_says_what_it_means_where_one_points_at_it():
    assert "陈旧度" in term("staleness").data and "<abbr title=" in term("staleness").data
    with pytest.raises(ValueError, match="term: got 'foo', allowed is one of "):
        term("foo")


def test_the_table_can_be_that_of_one_lab():
    whole, second = glossary().data, glossary("02").data
    assert "气泡" in whole and "气泡" not in second and "陈旧度" in second
    with pytest.raises(ValueError, match="lab: got '99', allowed is one of 00, "):
        glossary("99")


def test_every_notebook_explains_its_terms_from_the_top_and_the_page_is_told_all_of_them_once():
    notebooks = sorted(LABS.glob("*.ipynb"))
    assert len(notebooks) >= 12
    for path in notebooks:
        assert "lab.tooltips()" in json.loads(path.read_text())["cells"][1]["source"][-1], path.name
    shown = tooltips()
    told = {entry["name"]: entry for entry in shown.terms}
    assert set(told) == set(terms()) and told["lead"]["everyday"] and not told["staleness"]["everyday"]
    assert len(json.dumps(shown.terms)) < 30_000
