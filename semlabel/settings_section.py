"""What a table of the settings is, and the kinds of values in one.

Knows no table: those stand in `settings`.
"""

import re
import typing
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError


def written_as(pattern: str, words: LiteralString) -> AfterValidator:
    """Text that the whole of `pattern` matches; `words` say what to write where it does not."""

    def checked(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise PydanticCustomError("written_as", words)
        return value

    return AfterValidator(checked)


Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
InnerShare = Annotated[float, Field(gt=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
NonEmpty = Annotated[str, Field(min_length=1)]
# Where links start. They are sent to people, so no user and no password may stand in them.
WebAddress = Annotated[str, written_as(r"https?://[^@\s]+", "write https://HOST/PATH, without a user or a password")]


class Section(BaseModel):
    """A table of the settings: unknown keys are errors, values keep their TOML types, `""` unsets an optional one."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _unset_optional(cls, values: Any) -> Any:
        # TOML has no null, so a file that extends another could not take a value back.
        if not isinstance(values, dict):
            return values
        optional = {name for name, field in cls.model_fields.items() if type(None) in typing.get_args(field.annotation)}
        return {key: None if key in optional and value == "" else value for key, value in values.items()}
