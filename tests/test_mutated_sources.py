"""Broken bytes in the sample tables: never a traceback, never a silent shift, and every row kept or refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semlabel.cli import run_command
from semlabel.errors import SourceError
from semlabel.project_files import team_files
from semlabel.settings import Settings, load_settings
from semlabel.sources import SourceTable, read_catalog, read_entities, read_references

READERS = {"tickets.csv": read_entities, "topics.csv": read_catalog, "references.csv": read_references}
SAMPLE = team_files()
# What breaks tables in real life, and any byte at all.
PIECES = st.sampled_from([b'"', b",", b"\n", b"\r\n", b";", b"\x00", b"\xff", b"\xe9", b"\xc3", b"\xed\xa0\x80", b"\t"])
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "insert", "delete", "double"]),
        st.floats(0, 1, exclude_max=True),
        st.integers(1, 6),
        st.one_of(PIECES, st.binary(min_size=1, max_size=3)),
    ),
    min_size=1,
    max_size=3,
)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated")
    for name, content in SAMPLE.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "workspace.yaml").write_text("load_from:\n  - python_module: pipeline.definitions\n")
    return folder


def mutated(content: bytes, mutations) -> tuple[bytes, set[int]]:
    """The content with the mutations, and the numbers of the lines that they may have changed."""
    touched: set[int] = set()
    size = len(content)
    # From the end, so that what is before stays where it was.
    for how, share, length, piece in sorted(mutations, key=lambda mutation: -mutation[1]):
        at = int(share * size)
        end = min(at + length, len(content))
        line = content.count(b"\n", 0, at)
        touched |= set(range(line - 1, line + content.count(b"\n", at, end) + 2))
        old = content[at:end]
        new = {"replace": piece, "insert": piece + old, "delete": b"", "double": old + old}[how]
        content = content[:at] + new + content[end:]
    return content, touched


def read(project: Path, name: str, content: bytes) -> SourceTable | str:
    """The table, or the one line that refuses the whole file."""
    settings: Settings = load_settings(project / "pipeline.toml")
    path = project / "data" / name
    path.write_bytes(content)
    try:
        return READERS[name](settings)
    except SourceError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error)
        return str(error)
    finally:
        path.write_bytes(SAMPLE[f"data/{name}"])


def keyed(table: SourceTable) -> dict[tuple[str, ...], tuple[object, ...]]:
    """The kept rows by their ids."""
    ids = [column for column in table.frame.columns if column.endswith("_id")]
    return {tuple(row[name] for name in ids): tuple(row) for _, row in table.frame.iterrows()}


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=60)
@given(mutations=MUTATIONS)
def test_no_mutation_shifts_or_loses_a_row_it_did_not_touch(project, name, mutations):
    original = SAMPLE[f"data/{name}"]
    content, touched = mutated(original, mutations)
    table = read(project, name, content)
    if isinstance(table, str):
        return
    assert table.rows_in == len(table.frame) + len(table.refused) + table.redundant
    clean = read(project, name, original)
    lines = dict(zip(range(1, len(clean.frame) + 1), keyed(clean).items(), strict=True))
    kept = keyed(table)
    # A header that lost an optional column is the one mutation that may empty a column, and it is said.
    if 0 in touched:
        lines = {}
    for line, (ids, row) in lines.items():
        if line in touched or (ids in kept and kept[ids] == row):
            continue
        reasons = [refused.reason for refused in table.refused if refused.row_id == " / ".join(ids)]
        swallowed = any("quotes" in refused.reason for refused in table.refused)
        assert (ids not in kept and reasons) or swallowed, (ids, kept.get(ids))


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=20)
@given(share=st.floats(0, 1))
def test_a_truncated_file_keeps_only_whole_rows(project, name, share):
    original = SAMPLE[f"data/{name}"]
    table = read(project, name, original[: int(share * len(original))])
    if isinstance(table, str):
        return
    clean, kept = keyed(read(project, name, original)), keyed(table)
    # The last row may be cut inside its last cell, which no format without an end mark can tell.
    whole = dict(list(kept.items())[:-1])
    assert whole.items() <= clean.items()


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=6)
@given(mutations=MUTATIONS)
def test_check_tells_every_mutation_in_a_line_and_an_exit_code(project, name, mutations):
    path = project / "data" / name
    path.write_bytes(mutated(SAMPLE[f"data/{name}"], mutations)[0])
    try:
        assert run_command(["check", "--json", "--config", str(project / "pipeline.toml")]) in (0, 1, 2)
    finally:
        path.write_bytes(SAMPLE[f"data/{name}"])


def test_a_label_column_with_another_name_is_not_taken_for_yes_in_silence(project):
    table = read(project, "references.csv", b"ticket_id,topic_id,lable\n0001,sign-in,no\n")
    assert any("no label column: every row counts as YES" in warning for warning in table.warnings)
