"""What mkdocs does beyond Markdown: fills the reference pages, and checks links that leave docs/.

A page in docs/ may link to a file elsewhere in the repository: right where the repository is read, nothing on a site.
The link becomes its text, after it was seen that the file is there. Pictures of the benchmarks, the examples and the
Containerfile are taken along, and links lead to them: who installed the package has no repository.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.docs_reference import GENERATED, ROOT

_MARKER = re.compile(r"<!-- generated: (\w+) -->")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_TAKEN_ALONG = ("benchmarks/results/*.png", "examples/*/*", "Containerfile")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The files of the site, what is taken along among them; pages of that are reached by links only."""
    for path in _taken_along():
        place = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, place, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as mkdocs shall render it."""
    source = Path(page.file.abs_src_path)
    markdown = _MARKER.sub(lambda match: GENERATED[match[1]](), markdown)
    return _LINK.sub(lambda match: _inside(match, source), markdown)


def _inside(match: re.Match[str], page: Path) -> str:
    text, target, anchor = match[2], match[3], match[4] or ""
    if re.match(r"[a-z]+:", target):
        return match[0]
    file = (page.parent / target).resolve()
    if not file.exists() or not file.is_relative_to(ROOT):
        # Within docs/ mkdocs looks itself.
        if file.is_relative_to(ROOT / "docs"):
            return match[0]
        raise PluginError(f"{page}: links to {target}, which is not there")
    if file.is_relative_to(ROOT / "docs") or file in _taken_along():
        return f"{match[1]}[{text}]({posixpath.relpath(_on_site(file), _on_site(page.parent))}{anchor})"
    return text if text.startswith("`") else f"`{text}`"


def _taken_along() -> list[Path]:
    return [path for pattern in _TAKEN_ALONG for path in sorted(ROOT.glob(pattern)) if path.is_file()]


def _on_site(path: Path) -> str:
    """Where a file of the repository stands among the sources of the site."""
    docs = ROOT / "docs"
    return path.relative_to(docs if path.is_relative_to(docs) else ROOT).as_posix()
