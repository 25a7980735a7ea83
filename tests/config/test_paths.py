"""Private folders, and files that a user names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from dlpar import BadExperiment, Experiment
from dlpar.config.paths import private_folder, read_plain, runs_folder, write_whole
from dlpar.jobs.launch import _new_run_folder


@pytest.mark.parametrize("squat", ["file", "link", "dangling"])
def test_a_name_that_is_taken_is_refused_with_advice(squat, tmp_path):
    path, elsewhere = tmp_path / "dlpar", tmp_path / "elsewhere"
    if squat == "file":
        path.touch()
    else:
        path.symlink_to(elsewhere)
    if squat == "link":
        elsewhere.mkdir()
    with pytest.raises(
        PermissionError, match="is not a folder of yours alone; name another .*, or remove it"
    ):
        private_folder(path)
    assert squat == "link" or not elsewhere.exists()


def test_a_folder_that_others_use_is_not_closed_to_them(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    for path in (shared, Path("/"), Path("/usr")):
        mode = path.stat().st_mode
        with pytest.raises(PermissionError, match="not a folder of yours alone|somebody else"):
            with patch.object(Path, "chmod", side_effect=AssertionError("it is closed")):
                private_folder(path)
        assert path.stat().st_mode == mode
    own = tmp_path / "own"
    own.mkdir(mode=0o755)
    assert private_folder(own).stat().st_mode & 0o777 == 0o700


@pytest.mark.timeout(20)
def test_only_plain_files_of_a_bounded_size_are_read(tmp_path):
    plain, pipe = tmp_path / "plain", tmp_path / "pipe"
    plain.write_bytes(b"1234")
    os.mkfifo(pipe)
    assert read_plain(plain) == b"1234"
    for path, most, why in (
        (pipe, 99, "not a regular file"), ("/dev/zero", 99, "not a regular file"),
        (tmp_path, 99, "directory|not a regular file"),
        (plain, 3, "more than 3 bytes"), ("a\0b", 99, "contains no NUL"), (tmp_path / "none", 99, "No such file"),
        ("x" * 5000, 99, "too long"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=why):
            read_plain(path, most)


@pytest.mark.timeout(20)
def test_no_field_that_names_a_file_waits_for_a_pipe_or_reads_without_end(tmp_path):
    pipe, edges = tmp_path / "pipe", tmp_path / "edges"
    os.mkfifo(pipe)
    edges.write_text("0 1\n" * 2_000_000)
    began = time.process_time()
    for path in (pipe, edges, "/dev/zero"):
        with pytest.raises(BadExperiment, match="sync.edges: got "):
            Experiment(sync={"scheme": "gossip", "topology": "edges", "edges": str(path)})
    assert time.process_time() - began < 3


@pytest.mark.parametrize("text", ["a\0b", "\x1b[31m", "two\nlines", "x" * 5000, ""])
@pytest.mark.parametrize(
    "field", ["data.folder", "cluster.platform", "cluster.stand_in_for", "cluster.hostfile"]
)
def test_a_path_is_text_on_one_line(field, text):
    part, name = field.split(".")
    with pytest.raises(BadExperiment, match=f"{field}: got .*, allowed is text on one line") as refused:
        Experiment(**{part: {name: text}})
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "name", ["x/../../../escaped/y", "..", "/etc/passwd", "é" * 300, "a\0b", "<lambda>", ""]
)
def test_the_name_of_a_scheme_cannot_lead_out_of_the_runs(name, monkeypatch, tmp_path):
    monkeypatch.setenv("DLPAR_HOME", str(tmp_path))
    experiment = Experiment(sync={"scheme": "own", "name": name, "code": "none"})
    folder = _new_run_folder(experiment)
    assert folder.parent == runs_folder() and [p.name for p in Path(tmp_path).iterdir()] == ["runs"]


def test_a_folder_without_the_data_set_s_files_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ValueError, match="allowed for mnist is an existing folder that holds .*-ubyte"):
        Experiment(data={"name": "mnist", "folder": str(tmp_path)}).data.path()


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_is_written_whole_or_not_at_all_and_never_through_a_link(synced, tmp_path):
    elsewhere, path = tmp_path / "elsewhere", tmp_path / "file"
    elsewhere.write_bytes(b"hers")
    path.symlink_to(elsewhere)
    write_whole(path, b"new", 0o644, synced)
    assert path.read_bytes() == b"new" and not path.is_symlink() and elsewhere.read_bytes() == b"hers"
    assert path.stat().st_mode & 0o777 == 0o644
    with patch("os.replace", side_effect=OSError), pytest.raises(OSError):
        write_whole(path, b"torn", synced=synced)
    assert path.read_bytes() == b"new" and sorted(tmp_path.iterdir()) == [elsewhere, path]
