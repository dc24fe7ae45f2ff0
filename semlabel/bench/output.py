"""NAME.json, NAME.md and NAME.png, each replaced whole: a reader or a kill never meets half a file.

Knows nothing of what was measured.
"""

import json
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semlabel.bench.environment import environment
from semlabel.digests import digest_of
from semlabel.durable import replace_file
from semlabel.errors import SemlabelError

if TYPE_CHECKING:
    from semlabel.bench.subject import Subject

# Parts of one file must have been measured under the same conditions; the date is when the last one was.
_NOT_CONDITIONS = ("date",)


def write(directory: Path, name: str, document: dict[str, Any], markdown: str, png: bytes) -> list[Path]:
    """Write the three files of one measurement; the JSON, which says what is complete, comes last.

    NaN and infinities are errors. Returns the paths: JSON, Markdown, PNG.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    contents = {"png": png, "md": markdown.encode("utf-8"), "json": text.encode("utf-8")}
    for ending, content in contents.items():
        replace_file(directory / f"{name}.{ending}", content)
    return [directory / f"{name}.{ending}" for ending in ("json", "md", "png")]


def whole(schema_version: int, subject: "Subject", plan: Any, device: str, **parts: Any) -> dict[str, Any]:
    """The document of a measurement made in one go: what was measured, where and by which `plan` (a dataclass)."""
    about = {"model": subject.path, "model_digest": subject.digest, "plan": asdict(plan)}
    return {"schema_version": schema_version, "environment": environment(device), **about, **parts, "complete": True}


def resumed(
    directory: Path, name: str, schema_version: int, subject: "Subject", plan: Any, device: str, **parts: Any
) -> dict[str, Any]:
    """The document to go on with: an interrupted one of the same plan, model and conditions, else one with `parts`.

    Its `complete` is false until whoever measures says otherwise. An interrupted one that cannot be gone on with
    (another commit, machine or plan) is kept beside it: hours may have gone into it.
    """
    where = environment(device)
    conditions = {key: value for key, value in where.items() if key not in _NOT_CONDITIONS}
    plan_digest = digest_of([schema_version, asdict(plan), subject.digest, conditions])
    earlier = unfinished(directory, name, plan_digest)
    fresh = whole(schema_version, subject, plan, device, plan_digest=plan_digest, **parts)
    return (earlier or fresh) | {"environment": where, "complete": False}


def unfinished(directory: Path, name: str, plan_digest: str) -> dict[str, Any] | None:
    """The document of an earlier, interrupted measurement of the same plan; None when there is none to go on from.

    That of another plan is moved to NAME.interrupted-N.json.
    """
    file = directory / f"{name}.json"
    if not file.exists():
        return None
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise SemlabelError(f"{file}: is no JSON; move it away, the measurement will be written there") from None
    if document.get("complete") is not False:
        return None
    if document.get("plan_digest") == plan_digest:
        return document
    taken = (directory / f"{name}.interrupted-{number}.json" for number in count(1))
    file.rename(next(path for path in taken if not path.exists()))
    return None


def markdown_table(headers: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is flush left, the others flush right."""
    lines = [headers, ["---", *["---:"] * (len(headers) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
