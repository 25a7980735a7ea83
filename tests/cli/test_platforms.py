"""`dlpar platforms`: what there is to be paced to, and where its figures come from."""

from __future__ import annotations

import json

import pytest

from dlpar.cli import main
from dlpar.worlds.platforms import PLATFORMS, platform


def test_platforms_lists_each_with_its_links_and_every_source(capsys):
    assert main(["platforms"]) == 0
    table, sources = capsys.readouterr().out.split("Sources:")
    rows = {line.split()[0]: line for line in table.splitlines()[1:] if line.strip()}
    assert set(rows) == set(PLATFORMS)
    assert "P100" in rows["p100-25gbe-roce"] and "9.6 µs, 2.8 GB/s" in rows["p100-25gbe-roce"]
    assert "1 × 8" in rows["h100-nvlink"]
    for known in PLATFORMS.values():
        assert all(part in sources for part in known.source.split("; "))


def test_one_platform_is_shown_whole(capsys, tmp_path):
    file = tmp_path / "slow.json"
    file.write_text('{"extends": "p100-10gbe", "stragglers": {"3": 4}, "timing": "exponential"}')
    assert main(["platforms", str(file)]) == 0
    said = capsys.readouterr().out
    for words in (
        "slow",
        "5.1 TFLOP/s sustained, 16 GiB",
        "resnet50 219",
        "rank 3 × 4",
        "exponential",
        "changed in",
    ):
        assert words in said


@pytest.mark.parametrize("name", ["p100-25gbe-roce", "h100-nvlink"])
def test_the_json_of_a_platform_is_a_file_that_describes_it(capsys, tmp_path, name):
    assert main(["platforms", name, "--json"]) == 0
    file = tmp_path / "again.json"
    file.write_text(capsys.readouterr().out)
    assert platform(str(file)) == platform(name)


def test_the_json_of_all_is_one_list(capsys):
    assert main(["platforms", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(PLATFORMS)


def test_an_unknown_platform_is_a_bad_request_of_one_line(capsys):
    assert main(["platforms", "p101"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("dlpar platforms: PLATFORM: got 'p101', allowed is one of here, k80-1gbe")
    assert said.out == "" and said.err.count("\n") == 1
