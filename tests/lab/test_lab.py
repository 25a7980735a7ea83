"""The names of the lab: every one loads, and importing the lab alone loads nothing heavy."""

import subprocess
import sys

import pytest

from dlpar import lab


@pytest.mark.parametrize("name", lab.__all__)
def test_every_name_loads(name):
    assert getattr(lab, name) is not None and name in dir(lab)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        lab.nothing  # noqa: B018 - the access is what is tested


def test_importing_the_lab_loads_nothing_heavy():
    code = "import sys, dlpar.lab; print({'torch', 'pandas', 'plotly', 'ipywidgets'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
