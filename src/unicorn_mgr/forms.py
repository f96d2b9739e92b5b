"""What files that people write have in common: job files and scenarios.

Fields are strict, a model is described in one way everywhere, and mistakes are worded alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

MISSHAPEN = ("list_type", "dict_type", "model_type", "model_attributes_type", "too_short", "string_pattern_mismatch")
"""pydantic's words for values of another kind than wanted."""

WANTED = {
    "greater_than": "want more than {gt:g}",
    "greater_than_equal": "want at least {ge:g}",
    "less_than": "want less than {lt:g}",
    "less_than_equal": "want at most {le:g}",
    "finite_number": "want a finite number",
    "float_type": "want a number",
    "float_parsing": "want a number",
    "int_type": "want a whole number",
    "int_parsing": "want a whole number",
    "int_from_float": "want a whole number",
    "string_type": "want text; put it in quotes",
    "bool_type": "want true or false",
    "bool_parsing": "want true or false",
    "literal_error": "want {expected}",
    "enum": "want {expected}",
}
"""The commonest of pydantic's mistakes, as all others are worded here."""

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)
"""Of a form: it has no other fields than these, and a docstring below a field describes it."""


class Model(BaseModel):
    """What the job's throughput can be predicted from."""

    model_config = STRICT

    parameters: Rate
    """All of them, e.g. 7e9."""
    active_parameters: Rate | None = None
    """Of a mixture of experts: those that a token meets."""
    sequence_length: Count
    """Tokens."""
    global_batch: Count
    """Sequences a step."""
    micro_batch: Count = 1
    """Sequences a micro-batch."""
    device: str
    """A device type, e.g. H100."""
    precision: str = "bf16"
    tensor_parallel: Count = 1
    pipeline_parallel: Count = 1
    context_parallel: Count = 1
    layers: Count | None = None
    hidden: Count | None = None

    def known(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


def worded(found: Mapping[str, Any], shapes: Mapping[str, str]) -> str:
    """One of pydantic's mistakes: the value, and what is wanted; of one of another kind, `shapes` says it by field."""
    field = field_of(found)
    value = found["input"] if isinstance(found["input"], str) and found["input"].isprintable() else repr(found["input"])
    if found["type"] in MISSHAPEN and field in shapes:
        return f"{value}: want {shapes[field]}"
    if found["type"] in WANTED:
        return f"{value}: {WANTED[found['type']].format(**found.get('ctx', {}))}"
    return f"{value}: {found['msg'][0].lower()}{found['msg'][1:]}"


def field_of(found: Mapping[str, Any]) -> str:
    """The name of the field, with those that it is inside of."""
    return ".".join(str(part) for part in found["loc"] if part != "[key]")
