"""How property tests of the planner run."""

from __future__ import annotations

from hypothesis import settings

# The same commit has the same result; to look further, take derandomize out and give --hypothesis-seed.
settings.register_profile("planner", deadline=None, derandomize=True)
settings.load_profile("planner")
