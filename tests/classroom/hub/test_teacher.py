"""What the teacher's page asks of each student's server, and makes of what it says."""

from __future__ import annotations

import time
from typing import Any

import pytest

from classroom.hub.classroom import run_apart
from classroom.hub.test_answers import answer
from dlpar.classroom.hub.answers import LOT
from dlpar.jobs.slots import NoSlots
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
    says = {f"student{n}": told([answer(float(n))]) for n in range(LOT)}
    nonsense = [7, {}, told(7), told(memory=float("nan")), told(jobs=[{}]), told(jobs="none")]
    says |= {f"joker{n}": what for n, what in enumerate(nonsense)}

    async def looked() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        them = Class(says)
        return await them.look(), them.answers.table()

    rows, table = run_apart(looked())
    assert {row["name"] for row in rows if row["answers"]} == {f"student{n}" for n in range(LOT)}
    assert len(rows) == len(says) and [row["answers"] for row in table] == [LOT]


def test_an_offer_of_the_last_class_is_taken_back_once(monkeypatch):
    async def look_for_hours() -> list[Any]:
        them = Class({"ada": told()})
        them.send("grace", {"workers": 2})
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
    with pytest.raises(NoSlots, match="nobody gives them out here"):
        run_apart(teacher.ask_keeper({"pause": True}))
    assert run_apart(teacher.queue()) is None
