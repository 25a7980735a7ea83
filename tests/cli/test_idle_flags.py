"""A flag that changes nothing beside the others is told of, and the run goes on."""

from __future__ import annotations

import pytest

from dlpar.cli import flags, main, running, sweeping
from dlpar.config.applicable import MEANT_WITH


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch):
    monkeypatch.setattr(running, "run", lambda experiment, as_json: 0)
    monkeypatch.setattr(sweeping, "sweep", lambda asked, *how: 0)


@pytest.mark.parametrize(
    "command, told",
    [
        ("run --sync ps --staleness 2", ["--staleness 2 has no effect: it is meant with --consistency ssp"]),
        (
            "run --sync ps --softsync 2",
            ["--softsync 2 has no effect: it is meant with --consistency softsync"],
        ),
        (
            "run --sync ps --staleness-aware",
            ["--staleness-aware has no effect: it is meant with --consistency ssp, asp or softsync"],
        ),
        (
            "run --period 4",
            ["--period 4 has no effect: it is meant with --averaging local, elastic or block_momentum"],
        ),
        (
            "run --keep .5 --momentum .5",
            [
                "--momentum .5 has no effect: it is meant with --optimizer momentum",
                "--keep .5 has no effect: it is meant with --compression topk",
            ],
        ),
        (
            "run --delay-ms 50",
            ["--delay-ms 50 has no effect: it is meant with --delay constant, exponential or gamma"],
        ),
        (
            "run --sync mapreduce --regularization .5",
            ["--regularization .5 has no effect: it is meant with --regularizer l1 or l2"],
        ),
        ("run --sync gossip --degree 3", ["--degree 3 has no effect: it is meant with --topology random"]),
        (
            "run --sync gossip --topology random --degree 3 --exchange random",
            [
                "--topology random has no effect: it is meant with --exchange neighbours, pairwise or push_sum",
                "--degree 3 has no effect: it is meant with --exchange neighbours, pairwise or push_sum",
            ],
        ),
        ("run --node-size 3", ["--node-size 3 has no effect: it is meant with --allreduce hierarchical"]),
        (
            "run --model linear --data diabetes --width 8",
            ["--width 8 has no effect: it is meant with --model mlp, cnn or transformer"],
        ),
        ("run --sync ps --consistency ssp --staleness 2 --averaging local --period 4 --width 8", []),
        (
            "sweep --sync ring,ps --staleness 2,4",
            ["--staleness 2,4 has no effect: it is meant with --consistency ssp"],
        ),
        ("sweep --sync ring,ps --consistency bsp,ssp --staleness 2,4", []),
    ],
)
def test_a_flag_without_effect_is_told_of_and_changes_nothing_else(command, told, capsys):
    words = command.split()
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err.splitlines() == [f"dlpar {words[0]}: {sentence}" for sentence in told]


def test_every_condition_is_about_flags_and_values_that_exist():
    known = {flag.name: flag for flag in flags.flags()}
    for path, (beside, *values) in MEANT_WITH.items():
        head = known[beside]
        assert path in known and {*values} <= {
            *(head.kinds if head.is_head else flags.choices(head.field))
        }, path
