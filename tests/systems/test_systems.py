"""Published systems run here by their own mechanism, and their authors' figures hold."""

from __future__ import annotations

import json
import re

import pytest
from simulations import Simulations

from dlpar.cli import main
from dlpar.config.experiment import Experiment
from dlpar.systems import SYSTEMS, BadSystem, Figure, compare, find, run

NAMES = [system.name for system in SYSTEMS]

ELSEWHERE = ("horovod", "tensorflow_backup", "cntk_1bit")
"""Systems whose runs take long, and whose figures have tests of their own: published, sync and compression."""


def test_there_are_24_systems_or_more_each_with_its_own_name_source_and_place_on_the_axes():
    assert len(NAMES) == len(set(NAMES)) >= 24
    for system in SYSTEMS:
        assert (
            re.fullmatch(r"[a-z0-9_]+", system.name) and 2004 < system.year < 2025 and len(system.source) > 20
        )
        assert system.parameters in ("centralised", "sharded", "hierarchical", "decentralised")
        assert system.training in ("one model", "averaged models")
        assert re.match("synchronous|asynchronous|bounded staleness", system.consistency)
        assert system.figures and all(
            figure.basis in ("reported", "fitted", "shape", "memory") for figure in system.figures
        )
        experiments = system.experiments()
        assert experiments and all(
            isinstance(each, Experiment) or callable(each) for each in experiments.values()
        )


@pytest.fixture(scope="module")
def simulations(tmp_path_factory):
    return Simulations(tmp_path_factory.mktemp("systems"))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_the_figures_of_a_system_hold_in_its_runs(name, simulations, monkeypatch):
    monkeypatch.setattr("dlpar.systems.record.run_all", simulations)
    system = find(name, SYSTEMS)
    found = compare(system, run(system, jobs=1))
    assert [each for each in found if each.held is False] == []


def test_a_figure_outside_its_tolerance_does_not_hold_and_one_from_memory_gates_nothing():
    system = SYSTEMS[0]
    for ours, basis, held in ((1.09, "reported", True), (1.11, "fitted", False), (9.0, "memory", None)):
        figure = Figure("a figure", 1.0, lambda runs, ours=ours: ours, 0.1, basis)
        (found,) = compare(type(system)(**{**vars(system), "figures": (figure,)}), {})
        assert found.held is held and found.ours == ours


def test_an_unknown_system_is_refused_in_a_sentence_with_names_that_are_alike():
    with pytest.raises(
        BadSystem, match="^NAME: got 'horovot', allowed is a name that .* lists, such as horovod"
    ):
        find("horovot", SYSTEMS)
    for asked, such in (
        ("BigDL", "bigdl"),
        ("MXNet", "mxnet_kvstore"),
        ("D-PSGD", "dpsgd"),
        ("AD-PSGD", "gossip"),
    ):
        with pytest.raises(BadSystem, match=f"such as .*{such}"):
            find(asked, SYSTEMS)
    for odd in (None, 3, ["bigdl"]):
        with pytest.raises(BadSystem, match="^NAME: got "):
            find(odd, SYSTEMS)


def test_the_command_lists_them_and_refuses_others(capsys):
    assert main(["systems", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == NAMES
    assert main(["systems"]) == 0 and "Megatron-LM" in capsys.readouterr().out
    assert main(["systems", "nothing-like-it"]) == 2
    assert "allowed is a name that `dlpar systems` lists" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_runs_one_and_says_what_holds(capsys):
    assert main(["systems", "mariana", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["figures"][0]["held"] is True and said["missing"].startswith("convolutions that Mariana")
    assert main(["systems", "mariana"]) == 0 and "Does not run here: convolutions" in capsys.readouterr().out
