"""What mkdocs does beyond Markdown: fills the reference pages, and checks links that leave docs/.

A page in docs/ may link to a file elsewhere in the repository: right where the repository is read, nothing on a site.
The link becomes its text, after it was seen that the file is there. A picture from elsewhere is taken along.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.docs_reference import GENERATED, ROOT

_MARKER = re.compile(r"<!-- generated: (\w+) -->")
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_PICTURES = "benchmarks/results"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """The files of the site, the pictures of the benchmarks among them."""
    for picture in sorted((ROOT / _PICTURES).glob("*.png")):
        files.append(File.generated(config, f"{_PICTURES}/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page as mkdocs shall render it."""
    source = Path(page.file.abs_src_path)
    markdown = _MARKER.sub(lambda match: GENERATED[match[1]](), markdown)
    return _LINK.sub(lambda match: _inside(match, source), markdown)


def _inside(match: re.Match[str], page: Path) -> str:
    text, target = match[2], match[3]
    if re.match(r"[a-z]+:", target):
        return match[0]
    file = (page.parent / target).resolve()
    if file.is_relative_to(ROOT / "docs"):
        return match[0]
    if not file.exists() or not file.is_relative_to(ROOT):
        raise PluginError(f"{page}: links to {target}, which is not there")
    if match[1]:
        here = page.parent.relative_to(ROOT / "docs").as_posix()
        return f"![{text}]({posixpath.relpath(file.relative_to(ROOT).as_posix(), here)})"
    return text if text.startswith("`") else f"`{text}`"
