import pytest

from dlpar.config.experiment import Experiment
from dlpar.lab.labels import labels, same_batches, scheme

PS = {"scheme": "ps", "consistency": "asp"}


@pytest.mark.parametrize(
    "made, words",
    [
        ({}, "ring"),
        ({"sync": "ps"}, "ps bsp"),
        ({"sync": PS}, "ps asp"),
        ({"sync": {"scheme": "ps", "consistency": "ssp", "staleness": 2}}, "ps ssp(2)"),
        ({"sync": {"scheme": "gossip", "topology": "exp2"}}, "gossip exp2"),
        ({"sync": {"scheme": "gossip", "exchange": "pairwise"}}, "gossip pairwise ring"),
        ({"sync": {"scheme": "gossip", "exchange": "random"}}, "gossip random"),
        ({"sync": {"allreduce": "halving_doubling"}}, "halving-doubling all-reduce"),
        ({"sync": "hogwild"}, "hogwild"),
        ({"averaging": "local"}, "local SGD(8) ring"),
        ({"compression": "onebit"}, "ring onebit"),
    ],
)
def test_a_scheme_is_named_in_a_few_words(made, words):
    assert scheme(Experiment(**made)) == words


def test_schemes_are_told_apart_by_name_and_others_by_fields():
    ring, asp = Experiment(), Experiment(sync=PS)
    assert labels([ring, asp]) == ["ring", "ps asp"]
    assert labels([ring, asp.replace(lr=0.2)]) == ["ring, lr=0.1", "ps asp, lr=0.2"]
    assert labels([Experiment(sync="ps"), asp]) == ["consistency=bsp", "consistency=asp"]


def test_beside_another_scheme_one_with_two_settings_is_told_by_them():
    one, two = Experiment(sync={**PS, "servers": 1}), Experiment(sync={**PS, "servers": 2})
    assert labels([Experiment(), one, two]) == ["ring", "ps asp, servers=1", "ps asp, servers=2"]


def test_a_straggler_is_said_as_it_is_typed():
    slow = Experiment(delays={"straggler": {1: 4.0}})
    assert labels([Experiment(), slow]) == ["delays.straggler=none", "delays.straggler=1=4"]


def test_kinds_of_splits_are_told_apart_by_their_sizes_and_one_kind_by_its_fields():
    cuts = (
        "data",
        "tensor",
        {"kind": "spatial", "rows": 2, "columns": 2},
        {"kind": "pipeline", "schedule": "gpipe"},
    )
    cnn = Experiment(workers=4, model={"name": "cnn", "depth": 3})
    data, tensor, spatial, pipeline = (cnn.replace(split=cut) for cut in cuts)
    assert labels([data, tensor, spatial, pipeline]) == [
        "data",
        "tensor 4",
        "spatial 2 × 2",
        "pipeline 4 gpipe",
    ]
    assert labels([spatial, spatial.replace(split={"rows": 4, "columns": 1})]) == [
        "rows=2, columns=2",
        "rows=4, columns=1",
    ]


def test_a_platform_that_comes_from_a_file_is_called_by_its_name():
    slow = Experiment(cluster={"world": "simulated", "platform": "/some/folder/slow.json"})
    assert labels([slow, slow.replace(cluster={"platform": "cpu-1gbe"})]) == [
        "platform=slow",
        "platform=cpu-1gbe",
    ]


def test_splits_of_one_kind_beside_another_are_told_apart_by_their_settings():
    data = Experiment(workers=4, batch=64, model={"depth": 4})
    pipelines = [data.replace(split={"kind": "pipeline", "microbatches": n}) for n in (4, 8)]
    assert labels([data, *pipelines])[1:] == [
        "pipeline 4 1f1b, microbatches=4",
        "pipeline 4 1f1b, microbatches=8",
    ]


def test_batches_are_the_same_only_if_neither_speed_nor_time_decides_on_them():
    base = Experiment(workers=4, batch=240)
    assert same_batches(base, base.replace(workers=2, sync="gossip"))
    for other in ({"batch": 120}, {"seed": 1}, {"sync": {"scheme": "ps", "backup": 1}}, {"sync": PS}):
        assert not same_batches(base, base.replace(**other)), other
