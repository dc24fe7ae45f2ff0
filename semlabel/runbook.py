"""The runbook: one page for each gate and for a failed run, as `docs/runbook/` has it.

The pages ship in the wheel, so that whoever installed the package has them. Knows nothing of verdicts, nor of where a
page is shown.
"""

import re
from pathlib import Path

from semlabel.errors import SemlabelError
from semlabel.settings_words import nearest

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "runbook_pages", _PACKAGE.parent / "docs" / "runbook")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def names() -> list[str]:
    """Everything that has a page: the gates, and `run`."""
    return sorted(path.stem for path in _folder().glob("*.md"))


def page(name: str) -> str:
    """The page of a gate as text: Markdown without links, which lead nowhere outside the documentation.

    Raises SemlabelError for a name that has none.
    """
    if name not in names():
        raise SemlabelError(f"no gate is called {name}; {nearest(name, names())}")
    return _LINK.sub(r"\1", (_folder() / f"{name}.md").read_text(encoding="utf-8"))


def paragraphs(name: str, heading: str) -> list[str]:
    """What stands under one heading of a page, a paragraph each, without marks of Markdown."""
    below = page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [" ".join(part.split()).replace("`", "") for part in below.split("\n\n") if part.strip()]


def _folder() -> Path:
    for folder in _FOLDERS:
        if folder.is_dir():
            return folder
    raise SemlabelError(f"{_PACKAGE}: this installation has no runbook; install the wheel again")
