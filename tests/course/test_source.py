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


def test_a_notebook_shows_the_place_and_the_code_as_markdown():
    shown = show(Series.add)
    place, code = shown._repr_markdown_().split("\n\n", 1)
    assert place == f"`{shown.where}`" and code == f"```python\n{shown.code}\n```"
    assert "```" not in shown.code


@pytest.mark.parametrize("what", [len, 3, "dlpar.nowhere", "no_such_module", ""])
def test_what_has_no_source_is_refused(what):
    with pytest.raises(TypeError, match="show: got"):
        show(what)
