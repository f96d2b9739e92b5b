"""Every story happens as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from stories.teller import Teller, Unreadable, blocks_of

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.stem)
def test_a_story_happens_as_it_is_written(story: Path, request: pytest.FixtureRequest) -> None:
    told = Teller().retell(story)
    if request.config.getoption("--rewrite", default=False):
        story.write_text(told)
    assert told.splitlines() == story.read_text().splitlines()


def test_every_story_says_what_it_teaches_and_tells_something() -> None:
    for story in STORIES:
        first, *rest = blocks_of(story.read_text())
        assert all(line.startswith("#") for line in first.lines), f"{story.name} begins with no comment"
        assert any(block.told for block in rest), f"{story.name} tells nothing"


def test_a_line_that_means_nothing_is_named(tmp_path: Path) -> None:
    story = tmp_path / "wrong.txt"
    story.write_text("# What?\n\ncluster node-0\nat 3 kil gpt/0\n")
    with pytest.raises(Unreadable, match=r"wrong\.txt:4: at 3 kil gpt/0: ValueError: there is no command kil"):
        Teller().retell(story)
