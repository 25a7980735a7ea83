"""Reports of students' servers to the teacher's page, its requests to them, and the class's predictions."""

from __future__ import annotations

import time
from typing import Any

import pytest

from classroom.hub.classroom import run_apart

teacher = pytest.importorskip(
    "dlpar.classroom.hub.teacher", reason="tornado is not installed: pip install 'dlpar[hub]'"
)


def row(them: teacher.Students, name: str) -> dict[str, Any]:
    """A student's row on the page; empty if there is none."""
    return next((row for row in them.table() if row["name"] == name), {})


def told(predictions: Any = None, **changes: Any) -> dict[str, Any]:
    return {"jobs": [], "offer": None, "predictions": predictions} | changes


def test_a_server_that_talks_nonsense_is_refused_and_hides_nobody_else():
    them = teacher.Students()
    for n in range(teacher.LOT):
        them.hear(f"student{n}", told([answer(float(n))]))
    nonsense = [
        7,
        {},
        told(7),
        told(jobs=[{"id": "a", "says": "", "ranks": float("nan")}]),
        told(jobs=[{}]),
        told(jobs="none"),
    ]
    for n, report in enumerate(nonsense):
        with pytest.raises((LookupError, TypeError, ValueError)):
            them.hear(f"joker{n}", report)
        assert not row(them, f"joker{n}")
    assert all(row(them, f"student{n}")["here"] for n in range(teacher.LOT))
    assert [row["answers"] for row in them.answers.table()] == [teacher.LOT]


def test_a_server_that_has_fallen_silent_is_shown_so(monkeypatch):
    them = teacher.Students()
    them.hear("ada", told(jobs=[{"id": "a", "says": "a job", "ranks": 2}]))
    assert row(them, "ada")["here"] and row(them, "ada")["jobs"]
    later = time.monotonic() + teacher.PATIENCE + 1
    monkeypatch.setattr(teacher.time, "monotonic", lambda: later)
    assert not row(them, "ada")["here"] and row(them, "ada")["jobs"] == []


def test_a_job_is_stopped_once_by_the_server_of_its_own_student_alone():
    them = teacher.Students()
    them.to_stop["ada"] |= {"her job"}
    assert them.hear("bob", told()) == {"stop": []}
    assert them.hear("ada", told()) == {"stop": ["her job"]}
    assert them.hear("ada", told()) == {"stop": []}


def test_an_offer_is_brought_once_and_the_last_class_s_is_taken_back(monkeypatch):
    them = teacher.Students()
    them.offer = {"id": "new", "by": "grace", "at": time.time(), "experiment": {"sync": {"scheme": "ring"}}}
    assert them.hear("ada", told())["offer"] is them.offer
    assert "offer" not in them.hear("ada", told(offer="new")) and row(them, "ada")["offered"]
    them.offer = None
    assert them.hear("ada", told(offer="new"))["offer"] is None
    assert "offer" not in them.hear("ada", told()) and not row(them, "ada")["offered"]


def test_an_experiment_is_checked_before_it_is_offered_and_offered_with_all_its_fields():
    them, own = teacher.Students(), {"sync": {"scheme": "own", "code": "gASV"}}
    for fields, why in ((own, "allowed is one of dlpar's"), ({"colour": 1}, "colour"), (7, "got 7")):
        assert why in them.send("grace", fields)["refused"] and them.offer is None
    assert them.send("grace", {"workers": 3}) == {}
    offered = them.offer["experiment"]
    assert them.offer["by"] == "grace" and (offered["workers"], offered["model"]["name"]) == (3, "mlp")
    assert them.send("grace", None) == {} and them.offer is None


def test_who_may_not_pause_hears_why(monkeypatch):
    monkeypatch.setenv("DLPAR_SLOTS", "")
    with pytest.raises(teacher.HTTPError, match="nobody gives them out here"):
        run_apart(teacher.ask_keeper({"pause": True}))
    assert run_apart(teacher.queue()) is None


# ---- predictions: how they spread, and nothing about who said what --------------------


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
    answers = teacher.Answers()
    for n in range(teacher.LOT - 1):
        answers.heard(f"student{n}", [answer(float(n))])
        assert answers.table() == []
    answers.heard("last", [answer(None)])
    (row,) = answers.table()
    assert row["answers"] == 5 and row["found"] == "2.9 updates, measured (median)"
    assert sum(count for _, count in row["predicted"]) == 5 and row["predicted"][-1] == ["I don't know", 1]


def test_nobodys_answer_is_seen_to_come_or_go():
    answers = teacher.Answers()
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
    answers = teacher.Answers()
    for n in range(teacher.LOT):
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
    for n in range(2 * teacher.LOT):
        answers.heard(f"joker{n}", bad)
    assert answers.table() == shown


def test_questions_that_nobody_answers_any_more_are_not_kept():
    answers = teacher.Answers()
    for n in range(100):
        for student in range(teacher.LOT):
            answers.heard(f"student{student}", [answer(1.0, key=f"question {n}")])
        assert len(answers.table()) == 1
    assert answers._now.keys() == answers._shown.keys() == {"question 99"}


def test_numbers_that_hardly_differ_are_one_bar():
    answers = teacher.Answers()
    for n in range(teacher.LOT):
        answers.heard(f"student{n}", [answer(5e-324 * (n == 0))])
    assert answers.table()[0]["predicted"] == [["about 0 updates", teacher.LOT]]


def test_numbers_and_words_to_one_question_are_counted_by_their_numbers():
    answers = teacher.Answers()
    for n, said in enumerate([1.0, 2.0, "many", 1.0, None]):
        answers.heard(f"student{n}", [answer(said)])
    (row,) = answers.table()
    assert row["predicted"][-1] == ["I don't know", 1] and sum(count for _, count in row["predicted"]) == 4


def test_names_are_not_kept_and_the_order_of_coming_is_not_told():
    forth, back = teacher.Answers(), teacher.Answers()
    said = {f"student{n}": [answer(value)] for n, value in enumerate((1.0, 9.0, 2.0, 8.0, 3.0))}
    for name in said:
        forth.heard(name, said[name])
    for name in reversed(said):
        back.heard(name, said[name])
    assert forth.table() == back.table()
    assert "student" not in repr(vars(forth))
