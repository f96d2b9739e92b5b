"""How property tests run."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no failure: what is too slow is measured in benchmarks, never asserted here.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
