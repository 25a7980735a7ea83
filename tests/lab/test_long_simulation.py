"""A panel says beforehand that a simulation has millions of messages, and how many is what is then sent."""

import pytest

import dlpar
from dlpar.config.experiment import Experiment
from dlpar.lab.panel import Panel, foreseen, messages

SIZES = {"world": "simulated", "messages": "sizes", "platform": "k80-1gbe"}
MANY = Experiment(workers=512, scaling="weak", steps=20, cluster=SIZES)


def test_a_step_with_servers_is_a_push_and_an_answer_for_each_and_leaves_take_some_off():
    ps = MANY.replace(steps=1, sync={"scheme": "ps", "servers": 2})
    assert messages(ps) == 512 * 2 * 2 and messages(ps.replace(sync={"pull": "separate"})) == 512 * 2 * 3
    assert messages(ps.replace(sync={"groups": 8})) == 2 * (512 + 8 * 2)


def test_a_ring_of_512_for_20_steps_is_said_to_take_a_while():
    assert messages(MANY) == 20 * 2 * 512 * 511
    assert foreseen(MANY) == "This simulation sends about 10.5 million messages and takes about 30 s."
    assert Panel(MANY)._alert.value == ""
    panel = Panel(MANY)
    panel._controls.widgets["steps"].value = 1000
    assert "about 523.3 million messages and takes about 29 min." in panel._alert.value


def test_of_short_and_of_real_runs_nothing_is_said():
    assert foreseen(MANY.replace(steps=1)) == ""
    assert foreseen(Experiment(steps=1_000_000)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "sync",
    ["ring", {"scheme": "ring", "allreduce": "tree"}, "mapreduce", {"scheme": "gossip", "topology": "exp2"}],
)
def test_as_many_messages_are_sent_as_were_foreseen(sync):
    experiment = Experiment(
        workers=8,
        steps=2,
        sync=sync,
        model={"name": "linear"},
        data="diabetes",
        batch=64,
        cluster={"world": "simulated", "messages": "sizes"},
    )
    run = dlpar.launch(experiment).wait(60)
    sent = sum(record["messages"] for _, record in run.records() if record["k"] == "step")
    assert sent == messages(experiment)
