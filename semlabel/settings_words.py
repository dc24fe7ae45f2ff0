"""Settings of any shape in words: what is wrong with one, where it stands, and whether it holds text.

Walks pydantic models; deliberately does not know which settings there are.
"""

import difflib
import types
import typing
from typing import Annotated, Any, Literal

from pydantic import BaseModel
from pydantic_core import ErrorDetails

_TOLD = 3


def explained(root: type[BaseModel], problems: list[ErrorDetails]) -> str:
    """One line on what is wrong with settings of this shape, the first few problems of it."""
    # A mistyped name also shows as a missing one: the unknown names are those that tell people what to mend.
    unknown = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    told = list(dict.fromkeys(_explain(root, problem) for problem in unknown or problems))[:_TOLD]
    left = len(problems) - len(told)
    return "; and ".join(told) + (f" (and {left} more)" if left > 0 else "")


def _explain(root: type[BaseModel], problem: ErrorDetails) -> str:
    keys = [str(part) for part in problem["loc"]]
    section, place = _section_at(root, keys)
    where = f"[{'.'.join(keys[:-1])}] {keys[-1]}" if len(keys) > 1 else f"[{keys[0]}]" if keys else "the file"
    match problem["type"]:
        case "extra_forbidden":
            return f"{where} is not a setting; {nearest(keys[-1], list(section.model_fields))}"
        case "missing":
            return f"{where} is missing; set it"
        case "value_error":
            return f"{place} {problem['ctx']['error']}"
        case _ if keys[:1] == ["alerts"]:
            # What stands here may be an address with a secret in it.
            return f"{place} is not what it should be; {problem['msg'][:1].lower()}{problem['msg'][1:]}"
        case _:
            return f"{place} is {problem['input']!r}; {problem['msg'][:1].lower()}{problem['msg'][1:]}"


def _section_at(root: type[BaseModel], keys: list[str]) -> tuple[type[BaseModel], str]:
    """The section that holds the last of `keys`, and the setting's place in words (pydantic adds union members)."""
    section = root
    named: list[str] = []
    for key in keys:
        if key.isdigit() and named:  # the number of a table in a list of tables
            continue
        field = section.model_fields.get(key)
        if field is None:
            break
        named.append(key)
        inner = typing.get_args(field.annotation)[0] if typing.get_origin(field.annotation) is list else None
        below = inner or field.annotation
        if not (isinstance(below, type) and issubclass(below, BaseModel)):
            break
        section = below
    in_table = len(named) > 1 and section is not root and named[-1] in section.model_fields
    return section, f"[{'.'.join(named[:-1])}] {named[-1]}" if in_table else f"[{'.'.join(named)}]"


def nearest(name: str, known: typing.Sequence[str]) -> str:
    """What people may have meant by an unknown name, as a hint."""
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.6)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"valid: {', '.join(known)}" if len(known) <= 20 else "see the documentation for the valid names"


def wants_text(root: type[BaseModel], path: tuple[str, ...]) -> bool:
    """Whether the setting at `path` holds text, so that an override such as 1e5 is not read as a number."""
    section = root
    for position, key in enumerate(path):
        field = section.model_fields.get(key)
        if field is None:
            return False
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
        elif position == len(path) - 1:
            return _is_text(annotation)
        else:
            return typing.get_origin(annotation) is dict
    return False


def _is_text(annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        return all(_is_text(member) for member in members)
    if origin is Annotated:
        return _is_text(typing.get_args(annotation)[0])
    if origin is Literal:
        return all(isinstance(member, str) for member in typing.get_args(annotation))
    return annotation is str
