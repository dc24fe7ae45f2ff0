"""What was confirmed online is found again, whole and once, whatever was killed, sealed or damaged in between."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from semlabel import spool
from semlabel.spool import SpoolWriter, Update
from semlabel.spool_versions import Versions

ROOT = Path(__file__).parents[1]


def update(entity_id="e1", text="alpha", version=1, **changes):
    fields = {
        "accepted_at": "2026-11-30T12:00:00+00:00",
        "scorer_digest": "scorer",
        "labeler_digest": "labeler",
        "publication_version": "000001-20260101T000000Z",
        "candidate_text_ids": ("a", "b", "c"),
        "margins": np.array([1.5, -0.25, 3e-7], dtype=np.float32),
    }
    return Update(entity_id=entity_id, text=text, text_version=version, **fields | changes)


def contents(folder):
    spool.seal_all(folder)
    return [spool.read(path) for path in spool.sealed(folder)]


def told(folder):
    return [(each.entity_id, each.text_version, each.text) for found in contents(folder) for each in found.updates]


def test_an_update_comes_back_byte_for_byte_and_margins_bit_for_bit(tmp_path):
    writer = SpoolWriter(tmp_path / "spool")
    texts = ['a "quoted"\nline\r\n', "NFC é NFD é \u200b\u202e 漢字 \x00 end", "😀" * 1000]
    for number, text in enumerate(texts):
        writer.append(update(f"e\n{number}", text, 2**63 - 1))
    (found,) = contents(tmp_path / "spool")
    assert [each.text for each in found.updates] == texts
    assert [each.entity_id for each in found.updates] == ["e\n0", "e\n1", "e\n2"]
    for each in found.updates:
        assert each.margins.tobytes() == update().margins.tobytes() and each.margins.dtype == np.float32
        assert (each.text_version, list(each.candidate_text_ids)) == (2**63 - 1, ["a", "b", "c"])
    assert (found.damaged, found.torn) == ([], False)
    assert (tmp_path / "spool").stat().st_mode & 0o077 == 0


def test_a_writer_whose_segment_was_sealed_by_a_run_begins_another_and_loses_nothing(tmp_path):
    writer = SpoolWriter(tmp_path)
    for version in range(6):
        writer.append(update(version=version))
        if version % 2:
            spool.seal_all(tmp_path)
    assert [len(found.updates) for found in contents(tmp_path)] == [2, 2, 2]
    assert [version for _, version, _ in told(tmp_path)] == list(range(6))


def test_segments_are_sealed_by_size_by_age_and_when_told_to_end(tmp_path):
    SpoolWriter(tmp_path / "size", most_bytes=1).append(update())
    assert len(spool.sealed(tmp_path / "size")) == 1
    writer = SpoolWriter(tmp_path / "age", most_seconds=0.0)
    writer.append(update())
    assert spool.sealed(tmp_path / "age") == []
    writer.seal_when_old()
    assert len(spool.sealed(tmp_path / "age")) == 1
    young = SpoolWriter(tmp_path / "end")
    young.append(update())
    young.seal_when_old()
    assert spool.sealed(tmp_path / "end") == []
    young.seal()
    assert len(spool.sealed(tmp_path / "end")) == 1 and not list((tmp_path / "end").glob(f"*{spool.OPEN}"))


def test_many_writers_and_a_run_that_seals_all_the_while_lose_and_double_nothing(tmp_path):
    over = threading.Event()

    def write(number):
        writer = SpoolWriter(tmp_path, most_bytes=2_000)
        for version in range(40):
            writer.append(update(f"e{number}", version=version))

    def seal():
        while not over.is_set():
            spool.seal_all(tmp_path)

    sealing, threads = threading.Thread(target=seal), [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in (sealing, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    sealing.join()
    assert sorted(told(tmp_path)) == sorted((f"e{n}", version, "alpha") for n in range(4) for version in range(40))


def test_every_torn_end_of_a_killed_writer_is_dropped_and_what_was_confirmed_stays(tmp_path):
    writer = SpoolWriter(tmp_path)
    writer.append(update(version=1))
    spool.seal_all(tmp_path)
    (path,) = spool.sealed(tmp_path)
    confirmed = path.read_bytes()
    writer.append(update(version=2))
    spool.seal_all(tmp_path)
    second = spool.sealed(tmp_path)[1].read_bytes()
    for length in range(len(second)):
        path.write_bytes(confirmed + second[:length])
        found = spool.read(path)
        assert [each.text_version for each in found.updates] == [1] and found.damaged == []
        # The first line of the second part is its catalog: complete, it is nobody's update.
        assert found.torn is (length not in (0, second.index(b"\n") + 1))


def test_a_line_that_is_not_what_was_written_is_told_and_costs_no_other_line(tmp_path):
    writer = SpoolWriter(tmp_path)
    for version in (1, 2, 3):
        writer.append(update(version=version))
    spool.seal_all(tmp_path)
    (path,) = spool.sealed(tmp_path)
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"alpha"', b'"alphA"')
    path.write_bytes(b"\n".join(lines))
    found = spool.read(path)
    assert [each.text_version for each in found.updates] == [1, 3]
    assert found.damaged == [(3, "ValueError in line 3")] and not found.torn


def test_an_update_that_cannot_be_written_leaves_nothing_behind_and_the_next_one_is_whole(tmp_path, monkeypatch):
    writer = SpoolWriter(tmp_path)
    writer.append(update(version=1))
    with monkeypatch.context() as patch, pytest.raises(OSError):
        written = os.write
        patch.setattr(os, "write", lambda descriptor, data: written(descriptor, bytes(data)[:100]))

        def full(descriptor):
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", full)
        writer.append(update(version=2))
    writer.append(update(version=3))
    assert [version for _, version, _ in told(tmp_path)] == [1, 3]
    assert not any(found.torn for found in contents(tmp_path))


def test_an_erased_entity_is_in_no_segment_open_sealed_or_damaged(tmp_path):
    writer = SpoolWriter(tmp_path)
    writer.append(update("e1", "secret text", 1))
    writer.append(update("e2", "other", 1))
    writer.seal()
    (path,) = spool.sealed(tmp_path)
    path.rename(path.with_suffix(spool.DAMAGED))
    path.with_suffix(spool.DAMAGED).write_bytes(path.with_suffix(spool.DAMAGED).read_bytes() + b'? "e1" broken\n')
    writer.append(update("e1", "secret text", 2))
    writer.append(update("e2", "other", 2))
    names = lambda line: '"e1"' in line  # noqa: E731
    assert spool.erase(tmp_path, "e1", True, names) == 3
    assert spool.erase(tmp_path, "e1", False, names) == 3
    assert spool.erase(tmp_path, "e1", True, names) == 0
    assert all(b"secret" not in file.read_bytes() for file in tmp_path.iterdir())
    assert told(tmp_path) == [("e2", 2, "other")]


def test_the_highest_version_wins_and_one_version_has_one_text(tmp_path):
    versions = Versions(tmp_path)
    assert versions.claim("e1", 5, "A") is None
    assert versions.claim("e1", 5, "A") is None
    assert "5 was accepted with another text" in versions.claim("e1", 5, "B")
    assert "4 is older than 5" in versions.problem("e1", 4, "A")
    assert [versions.claim("e1", number, text) for number, text in ((6, "B"), (7, "A"))] == [None, None]
    assert versions.claim("e2", 0, "B") is None
    # Another process of the same server refuses the same ones.
    assert "6 is older than 7" in Versions(tmp_path).claim("e1", 6, "B")
    versions.forget("e1")
    assert versions.claim("e1", 1, "A") is None


def test_two_writers_that_claim_one_version_at_once_get_one_text(tmp_path):
    outcomes = []

    def claim(text):
        outcomes.append((text, Versions(tmp_path).claim("e1", 1, text)))

    threads = [threading.Thread(target=claim, args=(f"text {number}",)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [problem for _, problem in outcomes].count(None) == 1 and len(outcomes) == 12


WRITER = """
import sys
from pathlib import Path
from semlabel.spool import SpoolWriter
from tests.test_spool import update
writer = SpoolWriter(Path(sys.argv[1]), most_bytes=4000)
for version in range(100_000):
    writer.append(update(version=version, text="x" * 300))
    print(version, flush=True)
"""


def kill_a_writer(folder, chance):
    """Kill a writer somewhere; the versions it confirmed."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    ) as child:
        confirmed = [int(child.stdout.readline()) for _ in range(chance.randrange(5, 60))]
        threading.Event().wait(chance.uniform(0.0, 0.01))
        child.send_signal(signal.SIGKILL)
        confirmed += [int(line) for line in child.stdout.read().splitlines() if line]
    return confirmed


def assert_confirmed_is_there_once(folder, confirmed):
    found = [version for _, version, _ in told(folder)]
    # The one that was being written may be there: it was not refused, it was not answered.
    assert found in (confirmed, [*confirmed, len(confirmed)])
    assert not any(content.damaged for content in contents(folder))


def test_what_a_killed_writer_confirmed_is_there_once(tmp_path):
    assert_confirmed_is_there_once(tmp_path, kill_a_writer(tmp_path, random.Random(1)))


@pytest.mark.slow
@pytest.mark.parametrize("kill", range(30))
def test_what_a_writer_killed_anywhere_confirmed_is_there_once(tmp_path, kill):
    assert_confirmed_is_there_once(tmp_path, kill_a_writer(tmp_path, random.Random(kill)))
