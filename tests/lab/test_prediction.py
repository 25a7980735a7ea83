"""A prediction: what was typed, what counts of it, and how it compares with the result."""

import json

import numpy as np
import pytest
from ipywidgets.widgets.widget import _instances

from dlpar.lab import predict, prediction
from lab.readers import Reader


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(prediction, "_answers", {})
    monkeypatch.delenv("JUPYTERHUB_USER", raising=False)


def test_a_prediction_is_one_model():
    before = set(_instances)
    asked = predict("speed", "How fast?", unit="times", low=0, high=10)
    new = [type(_instances[key]).__name__ for key in set(_instances) - before]
    assert sorted(new) == ["Layout", "Prediction"]
    asked.close()


def test_without_an_answer_the_lab_goes_on():
    asked = predict("speed", "How fast?", unit="times")
    assert asked.value is None and str(asked.answer) == "not answered"
    assert "continues without one" in Reader(asked).state["note"]
    assert asked.reveal(1.7).sentence == "No prediction was made; measured: 1.7 times."
    assert asked.reveal(1.7, "simulated").sentence == "No prediction was made; simulated: 1.7 times."


def test_number_is_compared_with_the_measurement():
    asked = predict("speed", "How fast?", unit="times", low=0, high=10)
    page = Reader(asked)
    page.do(value="4")
    page.do(reason="four of them")
    assert asked.answer == (4.0, False, "four of them")
    assert page.state["note"] == "Noted: 4 times. You may still change it."
    revealed = asked.reveal(2.0)
    assert revealed.sentence == "You predicted 4 times; measured: 2 times: 2 times too high."
    shown = revealed._repr_html_()
    assert "four of them" in shown and "stroke-dasharray" in shown
    assert all(each in asked.reveal(2.0, "predicted")._repr_html_() for each in ("you said 4", "predicted 2"))


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("1,200", 1200),
        ("1,234,567", 1234567),
        ("1,000,000", 1e6),
        ("2,050,000", 2050000),
        ("1,5", 1.5),
        ("0,125", 0.125),
        ("2.5", 2.5),
        ("50 %", 50),
        ("50%", 50),
    ],
)
def test_commas_are_read_as_a_lab_prints_them_and_else_as_decimal_points(typed, taken):
    asked = predict("speed", "How fast?", unit="%")
    Reader(asked).do(value=typed)
    assert asked.value == taken


def test_one_bound_is_told_and_a_number_of_numpy_is_revealed():
    asked = predict("least", "How many?", low=0)
    Reader(asked).do(value="-1")
    assert asked.state["note"] == "'-1' is not a number from 0."
    Reader(asked).do(value="5")
    assert "7" in asked.reveal(np.int64(7)).sentence and "infinite" in asked.reveal(float("inf")).sentence


@pytest.mark.parametrize("typed", ["fast", "11", "-1", "nan"])
def test_what_is_no_sensible_number_is_told_and_not_taken(typed):
    asked = predict("speed", "How fast?", low=0, high=10)
    page = Reader(asked)
    page.do(value=typed)
    assert asked.value is None and "is not a number from 0 to 10" in page.state["note"]


@pytest.mark.parametrize("typed", ["nan", "inf", "-1e999"])
def test_without_bounds_too_a_number_is_finite(typed):
    asked = predict("speed", "How fast?")
    page = Reader(asked)
    page.do(value=typed)
    assert asked.value is None and "is not a number" in page.state["note"]


def test_a_comma_is_a_decimal_point():
    asked = predict("speed", "How fast?")
    Reader(asked).do(value=" 1,5 ")
    assert asked.value == 1.5


def test_choice_and_not_knowing():
    asked = predict("curve", "Which?", choices=["same", "steeper"])
    page = Reader(asked)
    page.do(value="steeper")
    assert asked.reveal("same").sentence == "You predicted “steeper”; measured: same."
    page.do(value="never offered")
    assert asked.value is None
    page.do(value=None)
    assert asked.answer.unsure and asked.value is None
    assert asked.reveal("same").sentence == "You said you don't know; measured: same."


def test_not_knowing_a_number_hides_what_was_typed_until_it_is_taken_back():
    asked = predict("speed", "How fast?")
    page = Reader(asked)
    page.do(value="3")
    page.do(unsure=True)
    assert asked.answer == (None, True, "")
    page.do(unsure=False)
    assert asked.answer == (3.0, False, "")


def test_answer_outlives_running_the_notebook_again():
    Reader(predict("speed", "How fast?")).do(value="3")
    again = predict("speed", "How fast?")
    assert again.value == 3.0
    state = Reader(again).state
    assert (state["answer"], state["typed"]) == (3.0, "3")
    Reader(predict("curve", "Which?", choices=["a", "b"])).do(value="b")
    assert Reader(predict("curve", "Which?", choices=["a", "b"])).state["answer"] == "b"


def test_a_page_that_is_loaded_again_shows_the_answer_of_now():
    asked = predict("speed", "How fast?")
    page = Reader(asked)
    page.do(value="3")
    page.do(reason="because")
    page.ask("all")
    assert (page.state["answer"], page.state["typed"], page.state["reason"]) == (3.0, "3", "because")
    page.do(unsure=True)
    page.ask("all")
    assert page.state["unsure"] is True


def test_answer_to_choices_that_changed_is_not_forced_on_them():
    Reader(predict("curve", "Which?", choices=["a", "b"])).do(value="b")
    assert Reader(predict("curve", "Which?", choices=["c", "d"])).state["answer"] not in ("c", "d")


def test_agreement_to_share_is_asked_for_on_a_hub_only_and_is_the_same_everywhere(monkeypatch, tmp_path):
    assert Reader(predict("a", "?")).state["share"] is None
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    one, other = Reader(predict("b", "?")), Reader(predict("c", "?"))
    assert one.state["share"] is False
    one.do(share=True)
    assert one.state["share"] and other.state["share"]
    one.do(share=False)
    assert not other.state["share"]


def test_what_a_student_types_is_text_on_the_page():
    asked = predict("speed", "How fast?")
    page = Reader(asked)
    page.do(value="<b>4</b>")
    page.do(reason="<script>")
    assert "<script>" not in asked.reveal(2.0)._repr_html_()
    json.dumps(page.state)
