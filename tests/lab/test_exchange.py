"""Predictions are kept for who made them, and can be deleted."""

from __future__ import annotations

import stat

import pytest

from dlpar.lab import predict
from dlpar.lab.exchange import forget_predictions, ledger, note, predictions, shared_answers
from dlpar.lab.prediction import Answer


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path / "own"))


def test_a_prediction_is_kept_beside_what_was_found_and_the_last_word_counts():
    note("02-stale", "How old?", Answer(3.0, False, "N - 1"), 2.9, "measured", "updates")
    note("00-faster", "How much faster?", Answer(4.0, False, ""), 1.2, "measured", "times")
    note("02-stale", "How old?", Answer(2.0, False, "a guess"), 2.95, "measured", "updates")
    table = predictions()
    assert table["lab"].tolist() == ["00", "02"] and table["predicted"].tolist() == [4.0, 2.0]
    assert (
        table.loc[1, "found"] == 2.95
        and table.loc[1, "because"] == "a guess"
        and table.loc[1, "unit"] == "updates"
    )


def test_i_do_not_know_is_an_answer_and_no_answer_is_none():
    note("00-a", "?", Answer(None, True, ""), 1.0, "measured")
    note("00-b", "?", Answer(), 1.0, "measured")
    assert predictions()["predicted"].tolist() == ["I don't know"]


def test_nobody_else_can_read_them_and_they_can_be_deleted():
    assert predictions().empty
    note("00-a", "怎么样？", Answer("yes", False, "因为"), "no", "simulated")
    assert (
        stat.S_IMODE(ledger().stat().st_mode) == 0o600
        and stat.S_IMODE(ledger().parent.stat().st_mode) == 0o700
    )
    assert predictions().loc[0, "because"] == "因为"
    forget_predictions()
    forget_predictions()
    assert predictions().empty and not ledger().exists()


def test_a_torn_line_loses_itself_alone():
    note("00-a", "?", Answer(1.0, False, ""), 2.0, "measured")
    with open(ledger(), "a") as file:
        file.write('{"key": "00-b", "pre\n[]\n')
    note("00-c", "?", Answer(1.0, False, ""), 2.0, "measured")
    assert len(predictions()) == 2


def test_revealing_a_prediction_keeps_it():
    asked = predict("99-kept", "How many?", unit="times", low=0, high=9)
    asked.reveal(3.0)
    assert predictions().empty, "nothing was predicted"
    asked.hear({"value": "2"})
    asked.reveal(3.0, "simulated")
    row = predictions().iloc[0]
    assert (row["predicted"], row["found"], row["how"]) == (2.0, 3.0, "simulated")


def test_nothing_is_shared_before_she_agrees_and_nothing_after_she_takes_it_back(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    note("02-stale", "How old?", Answer(3.0, False, "because I say so"), 2.9, "measured", "updates")
    assert shared_answers() is None
    asked = predict("02-stale", "How old?")
    asked.hear({"share": True})
    assert shared_answers() == [
        {
            "key": "02-stale",
            "question": "How old?",
            "predicted": 3.0,
            "found": 2.9,
            "how": "measured",
            "unit": "updates",
        }
    ]
    asked.hear({"share": False})
    assert shared_answers() is None
