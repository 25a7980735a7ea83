"""The course's map tells what the labs say of themselves, and its self-tests have the right keys."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances
from lab.readers import Reader

import dlpar
from dlpar import lab
from dlpar.course.curriculum import glossary, labs, terms, tooltips, what_runs
from dlpar.lab.exchange import note
from dlpar.lab.prediction import Answer
from dlpar.theory import Link, bubble

LABS = Path(__file__).parents[2] / "labs"


def opening(each) -> str:
    """The words of a lab's first cells."""
    cells = json.loads((LABS / f"{each.file}.ipynb").read_text())["cells"][:3]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_the_map_and_the_readme_have_every_lab_with_the_minutes_and_needs_it_states_itself():
    assert [each.file for each in labs().values()] == sorted(path.stem for path in LABS.glob("[0-9]*.ipynb"))
    readme = (LABS.parent / "README.md").read_text()
    for each in labs().values():
        said = re.search(r"\*(\d+) minutes\. You need: ([^.]*)\.", opening(each))
        assert (int(said[1]), said[2]) == (each.minutes, each.needs)
        row = next(line for line in readme.splitlines() if f"](labs/{each.file}.ipynb)" in line)
        assert f"| {each.minutes} |" in row and ("★" in row) == each.core


def test_the_index_links_every_lab_and_tests_what_it_needs():
    cells = json.loads((LABS / "index.ipynb").read_text())["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells)
    for each in labs().values():
        assert (
            f"]({each.file}.ipynb){' ★' * each.core}\n" in text and f'lab.self_test("{each.number}")' in text
        )


def test_the_map_says_which_predictions_were_revealed():
    shown = lab.course().data
    assert (
        shown.count("none yet") >= 10 and 'href="00_first_parallel_run.ipynb"' in shown and "9 hours" in shown
    )
    note("07-hidden", "How much?", Answer(3.0), 4.0, "simulated")
    assert "1 revealed" in lab.course().data
    lab.forget_predictions()


def test_a_self_test_gives_the_page_all_it_needs_to_check_an_answer_and_is_one_model():
    before = set(_instances)
    test = lab.self_test("03")
    new = [type(_instances[key]).__name__ for key in set(_instances) - before]
    assert sorted(new) == ["Layout", "SelfTest"]
    state = Reader(test).state
    assert (state["lab"], state["needs"]) == ("03", "labs 00 and 01")
    assert [(ask["question"], ask["right"]) for ask in state["asks"]] == [
        (ask["question"], ask["right"]) for ask in labs()["03"].asks
    ]
    assert all(ask["because"] and ask["choices"] for ask in state["asks"])
    with pytest.raises(ValueError, match="lab: got '99', allowed is one of 00, 01, "):
        lab.self_test("99")


def keyed(number: str, about: str) -> str:
    """The choice that counts as right, of the question that contains some words."""
    ask = next(ask for ask in labs()[number].asks if about in ask["question"])
    return ask["choices"][ask["right"]]


def test_numbers_among_the_right_choices_are_right():
    assert float(keyed("02", "the learning rate 0.1")) == pytest.approx(1.0 - 0.1 * 2.0)
    seconds = Link(latency=30e-6, bandwidth=1.1e9).latency + 1.1e6 / 1.1e9
    assert seconds == pytest.approx(1e-3, rel=0.05) and "1 ms" in keyed("03", "latency")
    assert 0.5**10 == pytest.approx(0.001, rel=0.05) and "0.001" in keyed("04", "eigenvalues")
    assert np.allclose(np.full((2, 2), 0.5) @ [1, 1], [1, 1]) and keyed("04", "Which vector") == "(1, 1)"
    assert int(keyed("05", "How stale").split()[0]) == 13 - 1 - 7
    assert keyed("06", "eight process 640") == f"{640 / 100:g} and {640 / 100 / 8:.0%}".replace("%", " %")
    assert Fraction(keyed("10", "Idle")) == pytest.approx(bubble("gpipe", 4, 8))
    assert keyed("07b", "Momentum") == f"{10e6 * 4 / 1e6:.0f} MB"
    shape = (np.ones((64, 256)) @ np.ones((256, 1024))).shape
    assert keyed("08", "How large") == f"{shape[0]} × {shape[1]:,}"


def test_every_question_has_one_right_choice_among_real_ones_and_says_why():
    for each in labs().values():
        assert 2 <= len(each.asks) <= 3
        for ask in each.asks:
            assert 0 <= ask["right"] < len(ask["choices"]) == len(set(ask["choices"])) >= 3 and ask[
                "because"
            ].endswith(".")
    assert len({ask["right"] for each in labs().values() for ask in each.asks}) == 3, (
        "the right one is not always the same"
    )


# ---- terms -----------------------------------------------------------------------------


def test_every_term_has_a_chinese_name_of_its_own_a_sentence_and_a_lab_that_uses_it():
    found = terms().values()
    assert len(found) >= 60 and len({entry.zh for entry in found}) == len(found)
    texts = {
        path.name.partition("_")[0]: path.read_text().lower().replace("-", "")
        for path in LABS.glob("*.ipynb")
    }
    for entry in found:
        assert re.search("[\u4e00-\u9fff]", entry.zh) and entry.means.endswith(".") and len(entry.means) < 120
        if entry.lab in texts:
            words = entry.name.lower().replace("-", "").split()
            assert all(word[:6] in texts[entry.lab] for word in words), (
                f"lab {entry.lab} does not speak of {entry.name}"
            )


def test_the_table_has_every_term_with_its_chinese_name():
    shown = glossary().data
    assert "气泡" in shown and "陈旧度" in shown and shown.count("<tr>") == 1 + len(terms())


def test_every_notebook_explains_its_terms_from_the_top_and_the_page_is_told_all_of_them_once():
    notebooks = sorted(LABS.glob("*.ipynb"))
    assert len(notebooks) >= 12
    for path in notebooks:
        assert "lab.tooltips()" in json.loads(path.read_text())["cells"][1]["source"][-1], path.name
    shown = tooltips()
    told = {entry["name"]: entry for entry in shown.terms}
    assert set(told) == set(terms()) and told["lead"]["everyday"] and not told["staleness"]["everyday"]
    assert len(json.dumps(shown.terms)) < 30_000


def test_a_table_of_what_runs_has_the_settings_that_are_not_usual_and_rows_for_those_that_differ():
    first = dlpar.Experiment(workers=2, sync={"scheme": "ps"}, lr=0.25)
    shown = what_runs({"first": first, "<b>": first.replace(sync={"servers": 3})}).data
    assert "All: sync.scheme ps, lr 0.25, workers 2<" in shown and "&lt;b&gt;" in shown
    (row,) = re.findall(r"<tr><th scope=.row.*?</tr>", shown)
    assert re.findall(r">([^<>]+)<", row) == ["sync.servers", "1", "3"]
    assert ">workers=4<" in what_runs([first, first.replace(workers=4)]).data
