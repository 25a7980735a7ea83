"""The all-reduce chosen by the link: what is chosen is the quickest, in theory and in a simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlpar
from dlpar import Experiment
from dlpar.collectives.auto import FORMS, quickest
from dlpar.theory import Link, collective_seconds, predict

BUCKETS = {"bucket_mb": 0.05, "allreduce": "auto"}


@given(st.integers(1, 512), st.integers(8, 10**9), st.floats(1e-7, 1e-3), st.floats(1e8, 1e11))
def test_the_choice_is_the_closed_forms_quickest(ranks, nbytes, latency, bandwidth):
    seconds = {name: collective_seconds(name, ranks, nbytes, Link(latency, bandwidth)) for name in FORMS}
    # The form of a tree is the sum over levels here, where theory follows each message: at most its bound.
    chosen = quickest(ranks, nbytes, latency, 1 / bandwidth)
    assert seconds[chosen] <= 1.0001 * min(seconds.values()) or (ranks & (ranks - 1) and chosen != "tree")


@pytest.mark.slow
@pytest.mark.parametrize("world", ["real", "paced", "simulated"])
def test_buckets_of_several_sizes_give_the_losses_of_one_process(world):
    alone = dlpar.launch(Experiment(workers=1, steps=6, dtype="float64")).wait(60).curve["loss"]
    run = dlpar.launch(
        Experiment(workers=5, steps=6, dtype="float64", sync=BUCKETS, cluster={"world": world})
    ).wait(60)
    np.testing.assert_allclose(run.curve["loss"], alone, rtol=1e-9)
    chosen = run.events.query("name == 'chosen'")["allreduce"]
    assert (
        len(chosen) == 5
        and set(chosen.iloc[0]) <= set(FORMS)
        and all(each == chosen.iloc[0] for each in chosen)
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 64, 1024])
def test_in_a_simulation_it_is_as_quick_as_the_quickest_and_predicted(width):
    def seconds(name):
        cluster = {"world": "simulated", "platform": "cpu-10gbe", "messages": "sizes"}
        model = {"name": "mlp", "width": width, "depth": 1}
        sync = {"allreduce": name, "bucket_mb": 4096}
        experiment = Experiment(model=model, workers=16, steps=4, sync=sync, cluster=cluster)
        run = dlpar.launch(experiment).wait(60)
        return run.curve["seconds"].diff().median(), run.steps["bytes"].sum(), predict(experiment)

    found = {name: seconds(name) for name in (*FORMS, "auto")}
    best = min(FORMS, key=lambda name: found[name][0])
    assert found["auto"][0] == pytest.approx(found[best][0]) and found["auto"][1] == found[best][1]
    assert found["auto"][2] == found[best][2]
