"""What a teacher has sent: offered in a panel, taken by a press, given back by another; never by itself."""

from __future__ import annotations

import json
import time

import pytest
from dlpar.lab.offer_widget import Offer

from dlpar.config.experiment import Experiment
from dlpar.lab import offer_widget as module
from dlpar.lab import offers
from dlpar.lab.panel import Panel

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


def offer_of(panel: Panel) -> Offer:
    return next(child for child in panel.children if isinstance(child, Offer))


def test_an_offer_changes_nothing_until_it_is_taken_and_can_be_undone():
    panel = Panel(Experiment(workers=2, sync={"scheme": "ps"}))
    hers = panel.experiment
    shown = offer_of(panel)
    assert shown.layout.display == "none"
    offers.put(sent(SENT))
    shown.see(offers.present())
    assert "grace" in shown._text.value and "8 workers, simulated" in shown._text.value
    assert shown.layout.display is None and panel.experiment == hers
    shown._take.click()
    assert panel.experiment == SENT and panel.runs == [] and not panel.running
    shown.see(offers.present())  # seen again, it asks nothing again
    assert shown._take.layout.display == "none"
    shown._undo.click()
    assert panel.experiment == hers
    shown._take.click()
    assert panel.experiment == SENT
    shown._no.click()
    assert shown.layout.display == "none" and panel.experiment == SENT


def test_undo_stays_when_the_offer_is_taken_back_or_another_comes():
    panel = Panel(Experiment(workers=2))
    hers, shown = panel.experiment, offer_of(panel)
    shown.see(sent(SENT))
    shown.take()
    shown.see(None)
    assert shown.layout.display is shown._undo.layout.display is None and shown._take.layout.display == "none"
    shown.see(sent(SENT.replace(steps=40), id="2"))
    assert shown._undo.layout.display is shown._take.layout.display is None
    shown.take()
    assert panel.experiment.steps == 40
    shown.see(None)
    shown.undo()
    assert panel.experiment == hers and shown.layout.display == "none"


def test_what_was_half_typed_comes_back_too():
    panel = Panel(Experiment(workers=2))
    panel.choose("workers", -5)
    shown = offer_of(panel)
    shown.see(sent(SENT))
    shown.take()
    assert panel.experiment == SENT
    shown.undo()
    assert panel._controls.widgets["workers"].value == -5 and panel._run.disabled


def test_an_offer_taken_back_or_of_another_class_or_version_is_not_shown():
    shown = offer_of(Panel())
    offers.put(sent(SENT, at=time.time() - 2 * offers.LASTS))
    assert offers.present() is None
    shown.see(sent(SENT) | {"experiment": {"workers": 2, "colour": "blue"}})
    assert shown.layout.display == "none"
    offers.put(sent(SENT, id="2"))
    shown.see(offers.present())
    assert shown.layout.display is None
    offers.put(None)
    shown.see(offers.present())
    assert shown.layout.display == "none"
    with pytest.raises(ValueError, match="offer: allowed are id, by, at and experiment"):
        offers.put({"id": "3"})


def test_on_a_hub_every_panel_finds_the_offer_by_itself(monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    monkeypatch.setattr(module, "LOOK", 0.02)
    panels = [Panel(), Panel()]
    offers.put(sent(SENT))
    end = time.monotonic() + 5
    while any(offer_of(panel).layout.display == "none" for panel in panels):
        assert time.monotonic() < end, "no panel shows the offer"
        time.sleep(0.02)
