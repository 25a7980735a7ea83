"""Tables of what the field did, and the map of systems, follow from the records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulations import simulation_of

from dlpar import Experiment, lab
from dlpar.systems import SYSTEMS, find
from dlpar.systems.field import (
    CONSISTENCY,
    PARAMETERS,
    TRAINING,
    choose_system,
    field,
    field_map,
    place,
    place_of,
    published,
    system_panel,
    works,
)
from dlpar.systems.record import BadSystem

LABS = sorted((Path(__file__).resolve().parents[2] / "labs").glob("[0-9]*.ipynb"))


def test_every_lab_shows_its_table_of_the_field_and_writes_none_by_hand():
    for path in LABS:
        number, text = path.name.partition("_")[0], path.read_text()
        sources = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
        assert f'lab.field("{number}")' in sources, path.name
        assert "it reported |" not in text, path.name
    assert set(works()) == {path.name.partition("_")[0] for path in LABS}


def test_a_row_says_that_it_runs_here_only_where_a_record_does():
    records = {system.name: system for system in SYSTEMS}
    for number, rows in works().items():
        shown = field(number).data.splitlines()[2:]
        assert len(shown) == (len(rows) or len(SYSTEMS))
        for row, work in zip(shown, rows):
            runs = f"`dlpar systems {work.get('system')}`"
            assert (runs in row) == ("system" in work)
            missing = records[work["system"]].missing if "system" in work else ""
            assert missing in row and ("without:" in row) == bool(missing)


def test_a_lab_that_is_not_there_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match="^lab: got '99', allowed is one of 00, 01"):
        lab.field("99")
    for odd in (11, ["11"], None):
        with pytest.raises(ValueError, match="^lab: got "):
            lab.field(odd)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_systems_place_on_the_map_is_that_of_its_experiments(system):
    axes = place(system)
    assert axes[0] in CONSISTENCY and axes[1] in PARAMETERS and axes[2] in TRAINING
    places = {place_of(each) for each in system.experiments().values() if isinstance(each, Experiment)}
    if not places:  # scripts train
        return
    if system.name == "rudra":  # softsync has one server here, and the hierarchy waits in step
        assert all(value in found for value, found in zip(axes, zip(*places)))
        return
    assert axes in places, places


def test_every_system_that_can_be_chosen_has_a_panel_and_the_last_panel_is_closed():
    choice, below = choose_system("rudra").children
    first = below.children[0]
    assert len(choice.options) > 25
    for _, name in choice.options:
        system_panel(name).close()
    choice.value = "petuum_ssp"
    assert first.comm is None and below.children[0] is not first
    below.children[0].close()
    for name in {each.name for each in SYSTEMS} - {name for _, name in choice.options}:
        with pytest.raises(BadSystem, match=f"got '{name}', allowed is one with two training runs"):
            system_panel(name)


@pytest.mark.parametrize("name", ["Rudra", "nobody", "cloudera_ml", None])
def test_a_system_that_cannot_be_chosen_is_refused_in_a_sentence(name):
    with pytest.raises(BadSystem, match="^NAME: got "):
        choose_system(name)


def test_the_runs_of_a_panel_are_compared_with_the_figures_that_they_show(tmp_path):
    own = {
        key: each for key, each in find("mapreduce", SYSTEMS).experiments().items() if "workers" not in key
    }
    runs = [simulation_of(each, tmp_path / key) for key, each in own.items()]
    table = published("mapreduce", runs).data
    assert "the same losses as one process" in table and "the reducer's port" not in table
    with pytest.raises(ValueError, match="^runs: got 1, allowed is one of each experiment of mapreduce"):
        published("mapreduce", runs[:1])


def test_the_map_shows_all_systems_and_a_combination_that_nobody_has_published():
    ours = Experiment(workers=8, sync={"scheme": "ps", "groups": 2, "consistency": "asp"})
    figure = field_map(ours)
    drawn = [name for trace in figure.data for name in trace.text]
    assert sorted(drawn) == sorted([*(system.title for system in SYSTEMS), "yours"])
    assert place_of(ours) == ("asynchronous", "hierarchical", "one model")
    table = figure.layout.meta["table"]
    assert table["system"][-1] == "yours" and table["parameters"][-1] == "hierarchical"
    places = [(trace.name, x, y) for trace in figure.data for x, y in zip(trace.x, trace.y)]
    assert len({(x, y) for _, x, y in places}) == len(places)  # no name upon another
