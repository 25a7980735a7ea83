import pytest

from dlpar.lab import predict, prediction


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(prediction, "_answers", {})


def test_without_an_answer_the_lab_goes_on():
    asked = predict("speed", "How fast?", unit="times")
    assert asked.value is None and str(asked.answer) == "not answered"
    assert asked.reveal(1.7).sentence == "No prediction was made; measured: 1.7 times."
    assert asked.reveal(1.7, "simulated").sentence == "No prediction was made; simulated: 1.7 times."


def test_number_is_compared_with_the_measurement():
    asked = predict("speed", "How fast?", unit="times", low=0, high=10)
    asked._text.value = "4"
    asked._reason.value = "four of them"
    assert asked.answer == (4.0, False, "four of them")
    revealed = asked.reveal(2.0)
    assert revealed.sentence == "You predicted 4 times; measured: 2 times: 2 times too high."
    assert "four of them" in revealed._repr_html_() and "stroke-dasharray" in revealed._repr_html_()


@pytest.mark.parametrize("typed", ["fast", "11", "-1"])
def test_what_is_no_sensible_number_is_told_and_not_taken(typed):
    asked = predict("speed", "How fast?", low=0, high=10)
    asked._text.value = typed
    assert asked.value is None and "is not a number from 0 to 10" in asked._note.value


def test_choice_and_not_knowing():
    asked = predict("curve", "Which?", choices=["same", "steeper"])
    asked._input.value = "steeper"
    assert asked.reveal("same").sentence == "You predicted “steeper”; measured: same."
    asked._input.value = prediction.UNSURE
    assert asked.answer.unsure and asked.value is None
    assert asked.reveal("same").sentence == "You said you don't know; measured: same."


def test_answer_outlives_running_the_notebook_again():
    predict("speed", "How fast?")._text.value = "3"
    again = predict("speed", "How fast?")
    assert again.value == 3.0 and again._text.value == "3"
    predict("curve", "Which?", choices=["a", "b"])._input.value = "b"
    assert predict("curve", "Which?", choices=["a", "b"])._input.value == "b"


def test_answer_to_choices_that_changed_is_not_forced_on_them():
    predict("curve", "Which?", choices=["a", "b"])._input.value = "b"
    assert predict("curve", "Which?", choices=["c", "d"])._input.value is None
