import pytest

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
    colours = {*theme.SCHEMES.values(), *theme.RANKS, *(p.colour for p in theme.PHASES.values())}
    weak = {colour: round(contrast(colour, page), 2) for colour in colours if contrast(colour, page) < 3}
    assert weak == {}


def test_every_scheme_has_a_colour_of_its_own():
    assert len(set(theme.SCHEMES.values())) == len(theme.SCHEMES) == 5


def test_ranks_are_told_apart_without_colour():
    signs = {(s["line"]["dash"], s["marker"]["symbol"]) for s in map(theme.rank_line, range(45))}
    assert len(signs) == 45


def test_phases_of_a_kind_are_told_apart_without_colour():
    looks = [(phase.group, phase.pattern) for phase in theme.PHASES.values()]
    assert len(set(looks)) == len(looks), "those of a kind have one colour"


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
