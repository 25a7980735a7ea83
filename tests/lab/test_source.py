import pytest
from dlpar.lab.live_plot import Series

from dlpar.lab import show


def test_source_has_its_place_and_its_lines():
    shown = show("dlpar.lab.live_plot.Series")
    assert shown.code.startswith("class Series:") and shown.where.startswith("dlpar/lab/live_plot.py, lines ")
    lines = open(__import__("dlpar.lab.live_plot", fromlist=["x"]).__file__).read().splitlines()
    assert lines[shown.first - 1] == "class Series:"
    assert show(Series).code == shown.code


def test_page_fetches_nothing_and_follows_the_theme():
    page = show(Series.add)._repr_html_()
    assert "http" not in page and "var(--jp-" in page


@pytest.mark.parametrize("what", [len, 3, "dlpar.nowhere", "no_such_module", ""])
def test_what_has_no_source_is_refused(what):
    with pytest.raises(TypeError, match="show: got"):
        show(what)
