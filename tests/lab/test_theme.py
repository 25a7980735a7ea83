import pytest

from dlpar.config.experiment import Experiment
from dlpar.lab import theme


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#111111", "#212121"], ids=["light", "dark", "dark tab"])
def test_every_colour_stands_out_on_both_themes(page):
    colours = {*theme.SCHEMES.values(), *theme.RANKS, *theme.RUNS, *(p.colour for p in theme.PHASES.values())}
    weak = {colour: round(contrast(colour, page), 2) for colour in colours if contrast(colour, page) < 3}
    assert weak == {}


def test_every_scheme_has_a_colour_of_its_own():
    assert len(set(theme.SCHEMES.values())) == len(theme.SCHEMES) == 5


def test_ranks_are_told_apart_without_colour():
    signs = {(s["line"]["dash"], s["marker"]["symbol"]) for s in map(theme.rank_line, range(45))}
    assert len(signs) == 45


def test_kinds_of_work_are_told_apart_and_only_idle_time_is_hatched():
    colours: dict[str, set[str]] = {}
    for phase in theme.PHASES.values():
        colours.setdefault(phase.group, set()).add(phase.colour)
    assert sum(map(len, colours.values())) == len(set().union(*colours.values())) == len(theme.PHASES)
    assert {phase.group for phase in theme.PHASES.values() if phase.pattern} == {"wait"}


def test_runs_that_are_compared_have_a_colour_each():
    ring, ps = Experiment(), Experiment(sync="ps")
    assert theme.run_colours([ring, ps]) == [theme.SCHEMES["ring"], theme.SCHEMES["ps"]]
    several = [ring.replace(workers=n) for n in (1, 2, 4, 8)]
    assert theme.run_colours(several) == list(theme.RUNS[:4])
    assert theme.run_colours([ring, ps, ring.replace(lr=0.2)]) == list(theme.RUNS[:3])
    assert theme.run_colours([ring]) == [theme.RUNS[0]] and len(set(theme.RUNS)) == len(theme.RUNS)


def test_dashed_is_left_to_predictions():
    assert theme.PREDICTED["dash"] not in theme.DASHES


@pytest.mark.parametrize(
    "value, end", [(2.31, 2.5), (0.93, 1.0), (1.0, 1.0), (61, 80), (float("nan"), 1.0), (0, 1.0)]
)
def test_axes_end_on_a_round_number(value, end):
    assert theme.rounded_up(value) == pytest.approx(end)


def test_axes_grow_by_doubling():
    assert [theme.doubled(v, 4) for v in (0, 4, 4.1, 100)] == [4, 4, 8, 128]
    assert theme.doubled(float("inf"), 4) == 4
