"""What the teacher's page asks of each student's server, and makes of what it says."""

from __future__ import annotations

import time
from typing import Any

import pytest

from classroom.hub.classroom import run_apart
from dlpar.lab import offers

teacher = pytest.importorskip(
    "dlpar.classroom.hub.teacher", reason="tornado is not installed: pip install 'dlpar[hub]'"
)


class Class(teacher.Students):
    """A class whose servers say what a test lets them say."""

    def __init__(self, says: dict[str, Any]) -> None:
        super().__init__()
        self.says, self.brought = says, []

    async def _ask(self, url: str, body: Any = None) -> Any:
        if url.startswith(self.api):
            return [
                {"name": name, "servers": {"": {"ready": True, "last_activity": "now"}}} for name in self.says
            ]
        name = url.split("/user/")[1].split("/")[0]
        if body is not None and "experiment" in body:
            return body  # her own server finds no fault in it
        if body is not None:
            self.brought.append((name, body["offer"]))
            self.says[name]["offer"] = body["offer"] and body["offer"]["id"]
        return self.says[name]


@pytest.fixture(autouse=True)
def a_service(monkeypatch):
    told = {
        "JUPYTERHUB_API_URL": "http://hub/api",
        "DLPAR_HUB_PROXY": "http://proxy",
        "JUPYTERHUB_API_TOKEN": "secret",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)


def told(predictions: Any = None, **changes: Any) -> dict[str, Any]:
    return {"jobs": [], "memory": 1 << 20, "offer": None, "predictions": predictions} | changes


def test_a_server_that_talks_nonsense_hides_nobody_else():
    says = {f"student{n}": told([answer(float(n))]) for n in range(teacher.LOT)}
    nonsense = [7, {}, told(7), told(memory=float("nan")), told(jobs=[{}]), told(jobs="none")]
    says |= {f"joker{n}": what for n, what in enumerate(nonsense)}

    async def looked() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        them = Class(says)
        return await them.look(), them.answers.table()

    rows, table = run_apart(looked())
    assert {row["name"] for row in rows if row["answers"]} == {f"student{n}" for n in range(teacher.LOT)}
    assert len(rows) == len(says) and [row["answers"] for row in table] == [teacher.LOT]


def test_an_offer_of_the_last_class_is_taken_back_once(monkeypatch):
    async def look_for_hours() -> list[Any]:
        them = Class({"ada": told()})
        await them.send("grace", {"workers": 2})
        assert [row["offered"] for row in await them.look()] == [True]
        later = time.time() + offers.LASTS + 1
        monkeypatch.setattr(teacher.time, "time", lambda: later)
        them.says["ada"]["offer"] = None  # it is too old there, too
        assert [row["offered"] for row in await them.look() + await them.look()] == [False, False]
        assert them.offer is None
        return them.brought

    assert len(run_apart(look_for_hours())) == 1


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


def test_numbers_that_hardly_differ_are_one_bar():
    answers = teacher.Answers()
    for n in range(teacher.LOT):
        answers.heard(f"student{n}", [answer(5e-324 * (n == 0))])
    assert answers.table()[0]["predicted"] == [["about 0 updates", teacher.LOT]]


def test_names_are_not_kept_and_the_order_of_coming_is_not_told():
    forth, back = teacher.Answers(), teacher.Answers()
    said = {f"student{n}": [answer(value)] for n, value in enumerate((1.0, 9.0, 2.0, 8.0, 3.0))}
    for name in said:
        forth.heard(name, said[name])
    for name in reversed(said):
        back.heard(name, said[name])
    assert forth.table() == back.table()
    assert "student" not in repr(vars(forth))
