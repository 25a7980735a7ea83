import pytest

from dlpar.experiment import Experiment
from dlpar.lab.labels import consistency, differences, labels, scheme

PS = {"scheme": "ps", "consistency": "asp"}


@pytest.mark.parametrize("made, words, stale", [
    ({}, "ring", "bsp"),
    ({"sync": "ps"}, "ps bsp", "bsp"),
    ({"sync": PS}, "ps asp", "asp"),
    ({"sync": {"scheme": "ps", "consistency": "ssp", "staleness": 2}}, "ps ssp(2)", "ssp(2)"),
    ({"sync": {"scheme": "gossip", "topology": "exp2"}}, "gossip exp2", "bsp"),
    ({"sync": {"scheme": "gossip", "exchange": "pairwise"}}, "gossip pairwise ring", "asp"),
    ({"sync": {"scheme": "gossip", "exchange": "random"}}, "gossip random", "bsp"),
    ({"sync": {"allreduce": "halving_doubling"}}, "halving-doubling all-reduce", "bsp"),
    ({"sync": "hogwild"}, "hogwild", "asp"),
    ({"averaging": "local"}, "local SGD(8) ring", "bsp"),
    ({"compression": "onebit"}, "ring onebit", "bsp"),
])  # fmt: skip
def test_a_scheme_is_named_in_a_few_words(made, words, stale):
    assert (scheme(Experiment(**made)), consistency(Experiment(**made))) == (words, stale)


def test_schemes_are_told_apart_by_name_and_others_by_fields():
    ring, asp = Experiment(), Experiment(sync=PS)
    assert labels([ring, asp]) == ["ring", "ps asp"]
    assert labels([ring, asp.replace(lr=0.2)]) == ["ring, lr=0.1", "ps asp, lr=0.2"]
    assert labels([Experiment(sync="ps"), asp]) == ["consistency=bsp", "consistency=asp"]
    assert differences(ring, asp) == {"sync": "ps asp"}


def test_beside_another_scheme_one_with_two_settings_is_told_by_them():
    one, two = Experiment(sync={**PS, "servers": 1}), Experiment(sync={**PS, "servers": 2})
    assert labels([Experiment(), one, two]) == ["ring", "ps asp, servers=1", "ps asp, servers=2"]


def test_a_straggler_is_said_as_it_is_typed():
    slow = Experiment(delays={"straggler": {1: 4.0}})
    assert labels([Experiment(), slow]) == ["delays.straggler=none", "delays.straggler=1=4"]
