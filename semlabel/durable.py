"""Making files and names last: fsync, and files and symbolic links that are replaced in one step.

Knows nothing of what the files are. Readers see the old content or target or the new one, never nothing.
"""

import os
import shutil
from pathlib import Path
from uuid import uuid4


def fsync_path(path: Path) -> None:
    """Make a file's content, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(path: Path) -> None:
    """Make every file and directory below `path`, and `path` itself, durable."""
    for folder, _, files in os.walk(path):
        for name in files:
            fsync_path(Path(folder) / name)
        fsync_path(Path(folder))


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of `path` in one durable step; a file that was there hands on its mode.

    What a kill in between leaves behind is named `.NAME-HEX`.
    """
    fresh = path.with_name(f".{path.name}-{uuid4().hex}")
    try:
        fresh.write_bytes(content)
        fsync_path(fresh)
        if path.exists():
            shutil.copymode(path, fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    fsync_path(path.parent)


def point_link(link: Path, target: Path) -> None:
    """Make `link` point to `target` (relative to the link's folder) in one durable step.

    What a kill in between leaves behind is named `.LINK-HEX`.
    """
    fresh = link.with_name(f".{link.name}-{uuid4().hex}")
    fresh.symlink_to(target)
    fresh.replace(link)
    fsync_path(link.parent)
