"""Predictions of a class: how they spread, and nothing about who said what."""

from __future__ import annotations

from dlpar.classroom.hub.answers import LOT, Answers


def answer(predicted, key="02-stale", found=2.9, unit="updates") -> dict:
    return {
        "key": key,
        "question": "How old?",
        "predicted": predicted,
        "found": found,
        "how": "measured",
        "unit": unit,
    }


def test_a_question_is_shown_from_five_answers_on():
    answers = Answers()
    for n in range(LOT - 1):
        answers.heard(f"student{n}", [answer(float(n))])
        assert answers.table() == []
    answers.heard("last", [answer(None)])
    (row,) = answers.table()
    assert row["answers"] == 5 and row["found"] == "2.9 updates, measured (median)"
    assert sum(count for _, count in row["predicted"]) == 5 and row["predicted"][-1] == ["I don't know", 1]


def test_nobodys_answer_is_seen_to_come_or_go():
    answers = Answers()
    for n in range(5):
        answers.heard(f"student{n}", [answer("a")])
    first = answers.table()
    for n in range(5, 9):
        answers.heard(f"student{n}", [answer("b")])
        assert answers.table() == first, "one more must not be told from the others"
    answers.heard("student9", [answer("b")])
    assert answers.table()[0]["predicted"] == [["a", 5], ["b", 5]]
    answers.heard("student0", None)  # she takes it back
    answers.heard("student1", [answer("c")])  # and she has changed her mind
    assert answers.table()[0]["predicted"] == [["a", 5], ["b", 5]]
    for n in range(2, 6):
        answers.heard(f"student{n}", None)
    assert answers.table()[0]["predicted"] == [["b", 4], ["c", 1]]
    answers.heard("student1", None)
    assert answers.table() == [], "four are too few"
    answers.heard("student0", [answer("d")])
    assert answers.table()[0]["predicted"] == [["b", 4], ["c", 1]], (
        "the one who came is not told from those who were"
    )


def test_what_is_no_answer_does_not_count():
    answers = Answers()
    for n in range(LOT):
        answers.heard(f"student{n}", [answer(float(n))])
    shown = answers.table()
    good = answer(1.0)
    missing = {field: good[field] for field in good if field != "predicted"}
    bad = [
        answer(["a", "list"]),
        answer(float("nan")),
        answer(True),
        answer(1.0, found=10**400),
        answer(1.0, unit=None),
        good | {"key": 7},
        missing,
        "a word",
        None,
    ]
    for n in range(2 * LOT):
        answers.heard(f"joker{n}", bad)
    assert answers.table() == shown


def test_numbers_that_hardly_differ_are_one_bar():
    answers = Answers()
    for n in range(LOT):
        answers.heard(f"student{n}", [answer(5e-324 * (n == 0))])
    assert answers.table()[0]["predicted"] == [["about 0 updates", LOT]]


def test_names_are_not_kept_and_the_order_of_coming_is_not_told():
    forth, back = Answers(), Answers()
    said = {f"student{n}": [answer(value)] for n, value in enumerate((1.0, 9.0, 2.0, 8.0, 3.0))}
    for name in said:
        forth.heard(name, said[name])
    for name in reversed(said):
        back.heard(name, said[name])
    assert forth.table() == back.table()
    assert "student" not in repr(vars(forth))
