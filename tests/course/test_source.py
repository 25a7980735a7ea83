import pytest

from dlpar.lab import show
from dlpar.lab.plot import Series


def test_source_has_its_place_and_its_lines():
    shown = show("dlpar.lab.plot.Series")
    assert shown.code.startswith("class Series:") and shown.where.startswith("dlpar/lab/plot.py, lines ")
    lines = open(__import__("dlpar.lab.plot", fromlist=["x"]).__file__).read().splitlines()
    assert lines[shown.first - 1] == "class Series:"
    assert show(Series).code == shown.code


def of_tools(x):
    x.y  # noqa: B018 (is read here)
    return x.y  # type: ignore[attr-defined]  # the field's name


def test_what_only_tools_read_is_left_out():
    assert show(of_tools).code.splitlines()[1:] == ["    x.y", "    return x.y  # the field's name"]


def test_page_fetches_nothing_follows_the_theme_and_breaks_no_word():
    shown = show(Series.add)
    page = shown._repr_html_()
    assert "http" not in page and "var(--jp-" in page and "word-break: normal" in page
    assert shown.where in page and f">{shown.first}</span>" in page.replace(" ", "")


@pytest.mark.parametrize("what", [len, 3, "dlpar.nowhere", "no_such_module", ""])
def test_what_has_no_source_is_refused(what):
    with pytest.raises(TypeError, match="show: got"):
        show(what)
