"""Writing labeler directories and promoting one of them: never a half one, never a changed one.

Knows nothing of models or margins: it moves files, seals manifests and switches a symbolic link. A directory appears
under its name only when it is complete and on the disk; `labelers/current` is a relative link that is replaced whole.
"""

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semlabel.durable import fsync_path, fsync_tree, point_link
from semlabel.errors import LabelerError
from semlabel.manifest import (
    MANIFEST_FILE,
    KnownPair,
    Manifest,
    PromptPart,
    describe_files,
    digest_of_weights,
    is_weights,
    read_manifest,
    verify,
)
from semlabel.prompt import Prompt, tokenizer_digest
from semlabel.versions import SCORING_CODE_VERSION

CURRENT = "current"
_STAGING = ".staging-"
_STALE_SECONDS = 3600.0
# Written by save_pretrained, read by nothing here.
_NOT_OURS = ("generation_config.json", MANIFEST_FILE)


def write_checkpoint(
    directory: Path,
    model_dir: Path,
    *,
    prompt: Prompt,
    base_model: str,
    precision: str,
    training: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None,
    known_pairs: Iterable[KnownPair] = (),
    limits: Mapping[str, int] | None = None,
) -> Manifest:
    """Write a checkpoint directory: `model_dir`'s safetensors and tokenizer with a manifest that has no threshold yet.

    `limits` (default: the prompt's) are token limits that margins depend on. An earlier checkpoint in `directory` is
    replaced. Weights are hard-linked where the file system can. Returns the manifest.
    """
    spec = prompt.spec
    with _staged(directory) as staging:
        for file in sorted(model_dir.iterdir()):
            if not file.name.startswith(".") and file.name not in _NOT_OURS:
                _take(file, staging)
        files = describe_files(staging)
        manifest = Manifest.sealed(
            base_model=base_model,
            prompt=PromptPart.from_spec(spec),
            answer_tokens={
                "yes": {"text": spec.yes, "id": prompt.yes_id},
                "no": {"text": spec.no, "id": prompt.no_id},
            },
            tokenizer_digest=tokenizer_digest(staging),
            weights_digest=digest_of_weights(files),
            precision=precision,
            scoring_code_version=SCORING_CODE_VERSION,
            limits=limits or {"max_query_tokens": spec.max_query_tokens, "max_item_tokens": spec.max_item_tokens},
            training=dict(training or {}),
            evidence=dict(evidence or {}),
            known_pairs=tuple(known_pairs),
            files=files,
            created_at=_now(),
        )
        (staging / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def write_labeler(
    labelers_dir: Path,
    checkpoint_dir: Path,
    threshold_result: Any,
    calibration: Any = None,
    *,
    evidence: Mapping[str, Any] | None = None,
    known_pairs: Iterable[KnownPair] | None = None,
    shortlist: Mapping[str, Any] | None = None,
) -> tuple[str, Path]:
    """Write `labelers_dir/DIGEST`: the checkpoint with the threshold, its policy and the probability map fixed.

    `threshold_result` has `threshold` (or None), `policy` and `word`; `calibration` has `a` and `b`, or is a mapping
    with `platt_a` and `platt_b`. `evidence` is added to the checkpoint's; `shortlist` is the rule that the threshold
    was proven with. A labeler that is already there is left alone, or replaced when it is damaged. Raises LabelerError
    for a damaged checkpoint and where no known pair is stored.
    """
    checkpoint = verify(checkpoint_dir)
    manifest = checkpoint.with_fields(
        threshold=threshold_result.threshold,
        policy=_plain(threshold_result.policy),
        certified=threshold_result.word if threshold_result.threshold is not None else "uncertified",
        calibration=_calibration_fields(calibration),
        shortlist=None if shortlist is None else dict(shortlist),
        evidence=checkpoint.evidence | dict(evidence or {}),
        known_pairs=checkpoint.known_pairs if known_pairs is None else tuple(known_pairs),
        created_at=_now(),
    )
    if not manifest.known_pairs:
        raise LabelerError(f"{checkpoint_dir}: no known pairs; a labeler needs a few to prove itself when loaded")
    target = labelers_dir / manifest.digest
    if target.exists() and _is_whole(target):
        return manifest.digest, target
    with _staged(target) as staging:
        for name in manifest.files:
            _take(checkpoint_dir / name, staging)
        (staging / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return manifest.digest, target


def find_labeler(labelers_dir: Path, digest: str) -> Path:
    """The directory of the one labeler whose digest is, or begins with, `digest`. Raises LabelerError otherwise."""
    known = sorted(path.name for path in labelers_dir.glob("*") if len(path.name) == 64 and path.is_dir())
    fitting = [name for name in known if name.startswith(digest)] if digest else []
    if len(fitting) == 1:
        return labelers_dir / fitting[0]
    what = f"{len(fitting)} labelers begin with" if fitting else "no labeler is called"
    there = ", ".join(name[:12] for name in fitting or known) or "none yet"
    raise LabelerError(f"{labelers_dir}: {what} {digest!r}; there are: {there}")


def promoted_path(labelers_dir: Path) -> Path | None:
    """The directory `labelers/current` points to, or None before the first promotion."""
    link = labelers_dir / CURRENT
    if not link.is_symlink():
        if link.exists():
            raise LabelerError(f"{link}: is no symbolic link; remove it and promote a labeler again")
        return None
    target = labelers_dir / link.readlink()
    if not target.is_dir():
        raise LabelerError(f"{link}: points to {target.name}, which is gone; promote a labeler that exists")
    return target


def refuse_unusable(labelers_dir: Path, digest: str) -> None:
    """Raise LabelerError where `switch_current` would, or where any file of the labeler was edited.

    For whoever must know before something else is switched; reads all weights (about 1 s per GB).
    """
    verify(find_labeler(labelers_dir, digest))
    _switchable(labelers_dir, digest)


def switch_current(labelers_dir: Path, digest: str) -> Path:
    """Point `labelers/current` to the labeler `digest`: readers see the old one or the new one, never nothing.

    Raises LabelerError when that labeler is missing or edited. Returns its directory.
    """
    target, link = _switchable(labelers_dir, digest)
    point_link(link, Path(digest))
    return target


def _switchable(labelers_dir: Path, digest: str) -> tuple[Path, Path]:
    """The directory of a labeler and the link that may be pointed to it."""
    target = labelers_dir / digest
    if read_manifest(target).digest != digest:
        raise LabelerError(f"{target}: holds a labeler of another digest; restore the directory")
    link = labelers_dir / CURRENT
    if link.exists() and not link.is_symlink():
        raise LabelerError(f"{link}: is no symbolic link; remove it and promote a labeler again")
    return target, link


def _is_whole(labeler: Path) -> bool:
    try:
        verify(labeler)
    except LabelerError:
        return False
    return True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _plain(value: Any) -> dict[str, Any]:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else dict(value)


def _calibration_fields(calibration: Any) -> dict[str, Any] | None:
    if calibration is None or isinstance(calibration, Mapping):
        return None if calibration is None else dict(calibration)
    return {"platt_a": float(calibration.a), "platt_b": float(calibration.b)}


def _take(file: Path, directory: Path) -> None:
    """Put a file into a directory: tensors as a hard link where the file system can, small files as copies."""
    target = directory / file.name
    if is_weights(file.name):
        try:
            os.link(file.resolve(), target)
        except OSError:  # another file system, or one without links
            shutil.copyfile(file, target)
    else:
        shutil.copyfile(file, target)


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """A hidden directory that replaces `target` when the block ends well and vanishes when it does not."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _remove_stale(target.parent)
    staging = target.parent / f"{_STAGING}{secrets.token_hex(6)}"
    staging.mkdir(mode=0o700)
    try:
        yield staging
        fsync_tree(staging)
        _put_in_place(staging, target)
        fsync_path(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _put_in_place(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    aside = target.parent / f"{_STAGING}{secrets.token_hex(6)}"
    target.rename(aside)
    try:
        staging.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside)


def _remove_stale(parent: Path) -> None:
    # A killed writer leaves its staging directory; a living one is done within the hour.
    for left in parent.glob(f"{_STAGING}*"):
        if not left.is_symlink() and time.time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
