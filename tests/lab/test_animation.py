"""Collectives shown step by step: the rounds are those of theory, the values those of real ranks."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from simulations import run

import dlpar
from dlpar import collectives as c
from dlpar.lab import animate, animation, figures
from dlpar.lab.animation import Event, contributions, in_rounds, record

pytestmark = pytest.mark.slow


def frames(figure):
    """What each cell says, round by round."""
    return [step.args[0]["text"][0] for step in figure.layout.sliders[0].steps]


def starts(workers):
    return [[4.0**rank] * workers for rank in range(workers)]


@pytest.mark.parametrize(
    "collective, workers, rounds, messages",
    [
        (c.ring_allreduce, 4, 6, 24),  # 2 (N-1)
        (c.star_allreduce, 4, 6, 6),  # 2 (N-1): one link to the root
        (c.tree_allreduce, 8, 6, 14),  # 2 log2 N
        (c.halving_doubling_allreduce, 8, 6, 48),  # 2 log2 N
        (c.halving_doubling_allreduce, 6, 6, 20),  # 2 log2 4, and two more to fold
        (partial(c.hierarchical_allreduce, group=2), 6, 6, 18),  # 1 + 2 (G-1) + 1
    ],
)
def test_rounds_are_those_of_theory_and_at_the_end_all_hold_everything(
    collective, workers, rounds, messages, monkeypatch
):
    simulated = lambda function, *given, workers, timeout: run(lambda comm: function(comm, *given), workers)
    monkeypatch.setattr(animation, "spmd", simulated)  # the next tests have real ranks
    figure = animate(collective, workers=workers)
    texts, table = frames(figure), figures.table(figure)
    assert texts[0] == [str(rank) for rank in range(workers) for _ in range(workers)]
    assert set(texts[-1]) == {"all" if workers > 4 else "0+1+2+3"}
    assert len(texts) - 1 == rounds == table["round"].max()
    assert len(table) == messages
    for _, one in table.groupby("round"):
        assert one["from rank"].is_unique and one["to rank"].is_unique


def test_a_ring_is_followed_chunk_by_chunk():
    figure = animate(c.ring_allreduce, workers=3, scheme="mapreduce")
    assert frames(figure)[1] == [*["0", "0", "0+2"], *["0+1", "1", "1"], *["2", "1+2", "2"]]
    full = "0+1+2"
    assert frames(figure)[3] == [*[full, full, "0+2"], *["0+1", full, full], *[full, "1+2", full]]
    table = figures.table(figure)
    assert list(table.iloc[0]) == [1, 0, 1, 8, "0"] and set(table["bytes"]) == {8}
    step = figure.layout.sliders[0].steps[1]
    arrows = [a for a in step.args[1]["annotations"] if a["showarrow"]]
    assert {(a["ay"], a["y"], int(a["x"])) for a in arrows} == {(0, 1, 0), (1, 2, 1), (2, 0, 2)}
    assert step.args[0]["marker.line.width"][0] == [0, 0, 3, 3, 0, 0, 0, 3, 0]
    assert figures.caption(figure) == (
        "ring_allreduce on 3 ranks, 3 chunks of 8 bytes: 12 messages and 96 bytes in 4 rounds; "
        "the busiest rank sends 32 bytes, 1.33 times the tensor."
    )
    assert figure.layout.sliders[0].steps[-1].args[0]["marker.color"][0] == ["#009e73"] * 9


def test_a_shown_animation_is_kept_with_its_messages_as_a_table(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    animate(c.tree_allreduce, workers=2, chunks=5)._ipython_display_()
    plotted, below = shown
    assert len(plotted["application/vnd.plotly.v1+json"]["layout"]["sliders"][0]["steps"]) == 3
    assert "from rank" in below["text/html"] and "0, 1, 2, 3, 4" in below["text/html"]


def test_a_students_collective_is_shown_whatever_calls_it_makes_and_whatever_is_wrong_with_it():
    def twice(comm, tensor):
        """Rank 0 adds what rank 1 sends, twice: by other calls than ours make, on a group of its own."""
        import torch

        half = comm.split(comm.rank // 2)
        if half.rank == 1:
            request = half.isend(tensor, 0, 7)
            request.wait()
        else:
            arriving = torch.empty_like(tensor)
            request = half.irecv(arriving, 1, 7)
            while not request.test():
                pass
            tensor += 2 * arriving
            tensor[1] /= 3
        half.close()

    figure = animate(twice, workers=4, chunks=2)
    before, after = frames(figure)
    assert before == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert after == ["0+2×1", "?", "1", "1", "2+2×3", "?", "3", "3"]
    assert [tuple(row) for row in figures.table(figure)[["from rank", "to rank"]].values] == [(1, 0), (3, 2)]


def test_a_started_collective_is_followed_on_its_thread():
    rounds = record(lambda comm, tensor: comm.start(c.star_allreduce, tensor).wait(), starts(3))
    assert rounds.held[-1] == [[21.0] * 3] * 3 and len(rounds.messages) == 4


def test_rounds_follow_from_who_had_to_wait_for_whom():
    """Both receive before they can pass on: a chain 0 to 1 to 2, and rank 3 heard by 2 in a later round."""

    def event(kind, peer):
        return Event(kind, peer, 0, 8, [0.0])

    logs = [
        [event("send", 1)],
        [event("recv", 0), event("send", 2)],
        [event("recv", 1), event("recv", 3)],
        [event("send", 2)],
    ]
    rounds = in_rounds([[*log, event("end", 0)] for log in logs], [[0.0]] * 4)
    assert [(m.source, m.dest, m.round) for m in rounds.messages] == [(0, 1, 1), (1, 2, 2), (3, 2, 3)]


def test_every_digit_is_one_ranks_contribution():
    base = 2.0 ** (52 // 4)
    assert contributions(1 + base**3, 4) == Counter({0: 1, 3: 1})
    assert contributions(2.0, 4) == Counter({0: 2})
    assert (
        contributions(0.5, 4) is None
        and contributions(float("nan"), 4) is None
        and contributions(-1.0, 4) is None
    )


@pytest.mark.parametrize(
    "ask, complaint",
    [
        (
            lambda: animate(c.ring_allreduce, workers=17),
            "workers: got 17, allowed is a whole number from 1 to 16",
        ),
        (
            lambda: animate(c.ring_allreduce, chunks=0),
            "chunks: got 0, allowed is a whole number from 1 to 16",
        ),
        (
            lambda: animate(c.ring_allreduce, workers=2.5),
            "workers: got 2.5, allowed is a whole number from 1 to 16",
        ),
        (lambda: animate("ring"), "collective: got 'ring', allowed is a function of"),
        (
            lambda: animate(c.library_allreduce, workers=2),
            "got library_allreduce, which sends nothing that can be seen",
        ),
    ],
)
def test_what_cannot_be_animated_is_refused_in_a_sentence(ask, complaint):
    with pytest.raises(ValueError, match=complaint):
        ask()


def test_a_collective_that_hangs_ends_and_says_where():
    def deaf(comm, tensor):
        comm.recv(tensor, (comm.rank + 1) % comm.size, 0)

    with pytest.raises(dlpar.JobFailed, match="no progress for 1 s"):
        record(deaf, starts(2), timeout=1.0)


def test_what_came_twice_is_not_taken_for_a_complete_sum():
    from dlpar.lab.animation import _short

    assert _short(Counter(dict.fromkeys(range(8), 1)), 8, room=8) == "all"
    assert _short(Counter({**dict.fromkeys(range(8), 1), 3: 2}), 8, room=8) == "9 of 8"
