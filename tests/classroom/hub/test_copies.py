"""A student's copy of the labs: what an update brings, and what it leaves alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from dlpar.classroom.hub.copies import bring, untouched


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    """Shared labs of two notebooks and a picture."""
    shared = tmp_path / "shared"
    (shared / "images").mkdir(parents=True)
    (shared / "00.ipynb").write_text("zero, first version")
    (shared / "01.ipynb").write_text("one, first version")
    (shared / "images" / "panel.png").write_bytes(b"picture")
    (shared / ".ipynb_checkpoints").mkdir()
    (shared / ".ipynb_checkpoints" / "00.ipynb").write_text("not for students")
    return shared


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "home" / "dlpar-labs"


def names(own: Path) -> set[str]:
    return {str(p.relative_to(own)) for p in own.rglob("*") if p.is_file()} - {".delivered.json"}


def test_the_first_visit_brings_everything_and_closes_it_to_others(labs: Path, own: Path) -> None:
    assert bring(labs, own) == ["00.ipynb", "01.ipynb", "images/panel.png"]
    assert names(own) == {"00.ipynb", "01.ipynb", "images/panel.png"}
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {stat.S_IMODE((own / name).stat().st_mode) for name in names(own)} == {0o600}
    assert bring(labs, own) == []


def test_an_edited_lab_survives_an_update_and_the_new_version_arrives_beside_it_once(
    labs: Path, own: Path
) -> None:
    bring(labs, own)
    (own / "00.ipynb").write_text("zero, and my solution")
    (labs / "00.ipynb").write_text("zero, second version")
    assert bring(labs, own) == ["00 (new).ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, and my solution"
    assert (own / "00 (new).ipynb").read_text() == "zero, second version"
    (own / "00 (new).ipynb").unlink()  # she does not want it
    assert bring(labs, own) == []
    (labs / "00.ipynb").write_text("zero, third version")
    assert bring(labs, own) == ["00 (new).ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, and my solution"


def test_a_new_version_that_was_edited_too_is_left_alone(labs: Path, own: Path) -> None:
    bring(labs, own)
    for version, mine in (
        ("second", "00.ipynb"),
        ("third", "00 (new).ipynb"),
        ("fourth", "00 (new 2).ipynb"),
    ):
        (own / mine).write_text(f"mine before the {version}")
        (labs / "00.ipynb").write_text(f"zero, {version} version")
        bring(labs, own)
    assert (own / "00.ipynb").read_text() == "mine before the second"
    assert (own / "00 (new).ipynb").read_text() == "mine before the third"
    assert (own / "00 (new 2).ipynb").read_text() == "mine before the fourth"
    assert (own / "00 (new 3).ipynb").read_text() == "zero, fourth version"


def test_an_untouched_lab_is_brought_up_to_date_and_a_new_one_is_added(labs: Path, own: Path) -> None:
    bring(labs, own)
    (labs / "01.ipynb").write_text("one, second version")
    (labs / "02.ipynb").write_text("two")
    assert bring(labs, own) == ["01.ipynb", "02.ipynb"]
    assert (own / "01.ipynb").read_text() == "one, second version"
    assert names(own) == {"00.ipynb", "01.ipynb", "02.ipynb", "images/panel.png"}


def test_a_deleted_lab_comes_back_fresh_and_a_withdrawn_one_stays_with_those_who_have_it(
    labs: Path, own: Path
) -> None:
    bring(labs, own)
    (own / "00.ipynb").unlink()
    (labs / "01.ipynb").unlink()
    assert bring(labs, own) == ["00.ipynb"]
    assert (own / "01.ipynb").read_text() == "one, first version"


def test_a_lab_that_came_another_way_is_not_touched(labs: Path, own: Path) -> None:
    own.mkdir(parents=True)
    (own / "00.ipynb").write_text("from last year's course")
    (own / "01.ipynb").write_text("one, first version")
    bring(labs, own)
    assert (own / "00.ipynb").read_text() == "from last year's course"
    assert (own / "00 (new).ipynb").read_text() == "zero, first version"
    assert not (own / "01 (new).ipynb").exists()


def test_a_rolled_back_lab_goes_back_where_nobody_has_edited_it(labs: Path, own: Path) -> None:
    bring(labs, own)
    (labs / "00.ipynb").write_text("zero, second version")
    bring(labs, own)
    (labs / "00.ipynb").write_text("zero, first version")
    assert bring(labs, own) == ["00.ipynb"]
    assert (own / "00.ipynb").read_text() == "zero, first version"


def test_only_what_is_as_it_was_delivered_counts_as_untouched(labs: Path, own: Path) -> None:
    bring(labs, own)
    (own / "00.ipynb").write_text("mine, with somebody else's outputs")
    (own / "planted.ipynb").write_text("from elsewhere")
    assert untouched(own) == ["01.ipynb", "images/panel.png"]


def test_a_link_in_the_way_is_replaced_and_not_followed(labs: Path, own: Path, tmp_path: Path) -> None:
    bring(labs, own)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("zero, first version")
    (own / "00.ipynb").unlink()
    (own / "00.ipynb").symlink_to(elsewhere)
    (labs / "00.ipynb").write_text("zero, second version")
    bring(labs, own)
    assert elsewhere.read_text() == "zero, first version" and not (own / "00.ipynb").is_symlink()


def test_a_damaged_record_costs_nobody_her_work(labs: Path, own: Path) -> None:
    bring(labs, own)
    (own / ".delivered.json").write_text("{")
    (own / "00.ipynb").write_text("mine")
    bring(labs, own)
    assert (own / "00.ipynb").read_text() == "mine"
