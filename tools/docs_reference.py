"""The reference pages, made from what they describe: the settings model, `--help`, and docstrings.

Knows Markdown and nothing of mkdocs. Imports no torch: Python's docstrings are read from the source.
"""

import ast
import inspect
import os
import re
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ROOT = Path(__file__).resolve().parent.parent
_CLASSES = (("semlabel/labeler.py", "Labeler"), ("semlabel/scorer.py", "Scorer"))
_WIDTH = "100"


def settings_markdown() -> str:
    """One table per section of `pipeline.toml`, with what its docstring says."""
    from semlabel.settings import Settings
    from semlabel.settings_section import Section

    parts: list[str] = []

    def section(name: str, model: type[Section]) -> None:
        below = []
        rows = []
        for key, field in model.model_fields.items():
            inner = _section_in(field.annotation, Section)
            if inner is not None:
                below.append((f"{name}.{key}" if name else key, inner))
            if inner is None or name:
                rows.append(f"| `{key}` | {_kind(field)} | {_default(field)} |")
        if name:
            parts.append(f"## [{name}]\n\n{inspect.cleandoc(model.__doc__ or '')}\n")
            parts.append("\n".join(["| setting | what | default |", "|---|---|---|", *rows, ""]))
        for path, inner in below:
            section(path, inner)

    section("", Settings)
    return "\n".join(parts)


def cli_markdown() -> str:
    """The help text of every command."""
    os.environ["TERMINAL_WIDTH"] = os.environ["COLUMNS"] = _WIDTH
    from typer.main import get_command

    from semlabel.cli import build_app

    parts: list[str] = []

    def add(name: str, command: Any) -> None:
        with command.make_context(name, [], resilient_parsing=True) as context:
            context.info_name = name
            parts.append(f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```\n")
        for below, inner in getattr(command, "commands", {}).items():
            add(f"{name} {below}", inner)

    add("semlabel", get_command(build_app()))
    return "\n".join(parts)


def python_markdown() -> str:
    """Signatures and docstrings of the public classes."""
    parts: list[str] = []
    for file, name in _CLASSES:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
        parts.append(f"## semlabel.{name}\n\n{ast.get_docstring(found) or ''}\n")
        for method in (node for node in found.body if isinstance(node, ast.FunctionDef)):
            if method.name == "__init__" or not method.name.startswith("_"):
                parts.append(_method(name, method))
    return "\n".join(parts)


GENERATED = {"settings": settings_markdown, "cli": cli_markdown, "python": python_markdown}


def _method(owner: str, method: ast.FunctionDef) -> str:
    decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
    called = owner if method.name == "__init__" else f"{owner}.{method.name}"
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(method.args))
    signature = called if "property" in decorators else f"{called}({arguments})"
    returns = f" -> {ast.unparse(method.returns)}" if method.returns and method.name != "__init__" else ""
    return f"### {called}\n\n```text\n{signature}{returns}\n```\n\n{ast.get_docstring(method) or ''}\n"


def _section_in(annotation: Any, section: type) -> Any:
    """The section that a setting holds, alone or in a list."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, section):
            return candidate
    return None


def _kind(field: FieldInfo) -> str:
    limits = [text for text in (_limit(item) for item in field.metadata) if text]
    return _cell(", ".join([_named(field.annotation), *limits]))


def _named(annotation: Any) -> str:
    members = get_args(annotation)
    if getattr(annotation, "__metadata__", None) is not None:
        limits = [text for item in annotation.__metadata__ for text in _limits_of(item)]
        return ", ".join([_named(members[0]), *limits])
    origin = get_origin(annotation)
    if origin in (list, dict):
        return f"{'list' if origin is list else 'table'} of {_named(members[-1])}"
    if members and all(isinstance(member, str) for member in members):
        return " or ".join(f'"{member}"' for member in members)
    if members:
        return " or ".join(_named(member) for member in members if member is not type(None))
    words = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return words.get(annotation, "tables" if isinstance(annotation, type) else str(annotation))


def _limits_of(item: Any) -> list[str]:
    items = item.metadata if isinstance(item, FieldInfo) else [item]
    return [text for text in map(_limit, items) if text]


def _limit(item: Any) -> str:
    words = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most", "min_length": "length at least"}
    said = [f"{word} {getattr(item, name)}" for name, word in words.items() if getattr(item, name, None) is not None]
    return ", ".join(said)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be set"
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return (
        _cell(f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`")
        if not hasattr(type(value), "model_fields")
        else ""
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
