"""What a teacher has sent: offered in a panel, taken by a press, given back by another; never by itself."""

from __future__ import annotations

import json
import time

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab import panel as module
from dlpar.lab.exchange import OFFER_LASTS, current_offer, put_offer
from dlpar.lab.panel import Panel
from lab.folders import ThreadJob, until
from lab.readers import Reader

SENT = Experiment(
    workers=8, steps=30, split={"kind": "pipeline"}, model={"depth": 8}, cluster={"world": "simulated"}
)


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path / "own"))


def sent(experiment: Experiment, **changes) -> dict:
    return {
        "id": "1",
        "by": "grace",
        "at": time.time(),
        "experiment": json.loads(experiment.to_json()),
    } | changes


def buttons(page: Reader) -> list[str]:
    """Names of the buttons beside the offer; none if no offer is shown."""
    return (page.state["offer"] or {}).get("actions", [])


def test_an_offer_changes_nothing_until_it_is_taken_and_can_be_undone():
    panel = Panel(Experiment(workers=2, sync={"scheme": "ps"}))
    page, hers = Reader(panel), panel.experiment
    assert page.state["offer"] is None
    put_offer(sent(SENT))
    panel._offer.see(current_offer())
    assert "grace" in page.state["offer"]["text"] and "8 workers, simulated" in page.state["offer"]["what"]
    assert buttons(page) == ["take", "away"] and panel.experiment == hers
    page.do(do="take")
    assert panel.experiment == SENT and panel.runs == [] and not panel.running
    assert page.state["values"]["workers"] == "8"
    panel._offer.see(current_offer())  # seen again, it asks nothing again
    assert buttons(page) == ["undo", "away"]
    page.do(do="undo")
    assert panel.experiment == hers and buttons(page) == ["take", "away"]
    page.do(do="take")
    assert panel.experiment == SENT
    page.do(do="away")
    assert page.state["offer"] is None and panel.experiment == SENT


def test_an_offer_stays_when_another_run_begins_but_the_offer_to_resume_goes(monkeypatch):
    monkeypatch.setattr(dlpar, "launch", ThreadJob, raising=False)
    panel = Panel(Experiment(workers=2, steps=3))
    page = Reader(panel)
    put_offer(sent(SENT))
    panel._offer.see(current_offer())
    panel.run()
    until(lambda: not panel.running)
    assert buttons(page) == ["take", "away"]
    panel.tell(offer={"text": "Its newest snapshot is after step 2.", "actions": ["resume"]})
    panel.replay(panel.runs[0])
    assert buttons(page) == []
    panel.leave()


def test_undo_stays_when_the_offer_is_taken_back_or_another_comes():
    panel = Panel(Experiment(workers=2))
    page, hers = Reader(panel), panel.experiment
    panel._offer.see(sent(SENT))
    page.do(do="take")
    panel._offer.see(None)
    assert buttons(page) == ["undo", "away"]
    panel._offer.see(sent(SENT.replace(steps=40), id="2"))
    assert buttons(page) == ["take", "undo", "away"]
    page.do(do="take")
    assert panel.experiment.steps == 40
    panel._offer.see(None)
    page.do(do="undo")
    assert panel.experiment == hers and page.state["offer"] is None


def test_what_was_half_typed_comes_back_too():
    panel = Panel(Experiment(workers=2))
    page = Reader(panel)
    page.do(do="set", path="workers", value="-5")
    panel._offer.see(sent(SENT))
    page.do(do="take")
    assert panel.experiment == SENT and page.state["wrong"] is None
    page.do(do="undo")
    assert page.state["values"]["workers"] == "-5" and page.state["wrong"] == "workers"


def test_labels_of_controls_are_those_of_what_was_sent():
    panel = Panel(Experiment(workers=2, split={"kind": "tensor"}))
    page = Reader(panel)

    def label():
        return next(f["label"] for f in page.state["fields"] if f["path"] == "split.tensor")

    assert label() == "tensor (0: all)"
    panel._offer.see(sent(SENT.replace(split={"kind": "hybrid"})))
    page.do(do="take")
    assert label() == "tensor"
    page.do(do="undo")
    assert label() == "tensor (0: all)"


def test_an_offer_taken_back_or_of_another_class_or_version_is_not_shown():
    panel = Panel()
    page = Reader(panel)
    put_offer(sent(SENT, at=time.time() - 2 * OFFER_LASTS))
    assert current_offer() is None
    panel._offer.see(sent(SENT) | {"experiment": {"workers": 2, "colour": "blue"}})
    assert page.state["offer"] is None
    put_offer(sent(SENT, id="2"))
    panel._offer.see(current_offer())
    assert page.state["offer"]
    put_offer(None)
    panel._offer.see(current_offer())
    assert page.state["offer"] is None
    with pytest.raises(ValueError, match="offer: allowed are id, by, at and experiment"):
        put_offer({"id": "3"})


def test_on_a_hub_every_panel_finds_the_offer_by_itself(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setattr(module, "LOOK", 0.02)
    pages = [Reader(Panel()), Reader(Panel())]
    put_offer(sent(SENT))
    until(lambda: all(page.state["offer"] for page in pages), 5)
