"""Settings: wrong ones are named in one line, right ones arrive unchanged."""

import stat
import sys
from pathlib import Path

import pytest

from semlabel.errors import SettingsError
from semlabel.settings import Settings, load_settings

MINIMAL = """
[sources]
entities = "entities.csv"
catalog = "catalog.csv"
references = "references.csv"
[model]
base = "./base"
[prompt]
template = "{entity} does {candidate}"
[calibration]
min_precision = 0.5
"""


def write(folder: Path, text: str = MINIMAL, name: str = "pipeline.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, env: dict[str, str] | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(path, env)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_the_file_does_not_say_has_the_documented_default(tmp_path):
    settings = load_settings(write(tmp_path))
    assert (settings.splits.calibrate, settings.splits.certify, settings.splits.test, settings.splits.seed) == (
        0.1,
        0.15,
        0.1,
        7,
    )
    assert settings.sources.unlisted == "negative"
    assert settings.prompt.format == "readout"
    assert settings.training.items_per_round == 40
    assert settings.scoring.items_per_round == 200
    assert settings.calibration.max_fpr is None
    assert settings.schedule.timezone == "UTC"


@pytest.mark.parametrize(
    ("addition", "nearest"),
    [
        ("[trainig]\n", "training"),
        ("[training]\nlerning_rate = 1e-4\n", "learning_rate"),
        ("[sources.columns]\nentity_ids = 'x'\n", "entity_id"),
        ("[sources.columns.catalog]\ntexts = 'x'\n", "text"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_valid_name(tmp_path, addition, nearest):
    path = write(tmp_path, MINIMAL + addition)
    assert f'did you mean "{nearest}"?' in refusal(path)


def test_a_mistyped_required_key_is_named_rather_than_reported_missing(tmp_path):
    message = refusal(write(tmp_path, MINIMAL.replace("template =", "templte =")))
    assert '[prompt] templte is not a setting; did you mean "template"?' in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("min_precision = 0.5", 'min_precision = "high"', "[calibration] min_precision is 'high'"),
        ("min_precision = 0.5", "min_precision = 50", "less than 1"),
        ("min_precision = 0.5", "min_precision = nan", "finite"),
        ("min_precision = 0.5", "cuts = 5", "set at least one of min_precision, max_fpr, max_fnr"),
        ("{entity} does {candidate}", "{entity}", "{candidate} 0 times"),
        ("{entity} does {candidate}", "{candidate} for {entity}", "{candidate} before {entity}"),
        ("{entity} does {candidate}", "{entity} {entity} {candidate}", "{entity} 2 times"),
        ('base = "./base"', "base = 3", "[model] base is 3"),
        ('base = "./base"', "", "[model] base is missing"),
        ("[model]", "[schedule]\ntimezone = 'Europe/Berln'\n[model]", 'did you mean "Europe/Berlin"?'),
        ("[model]", "[schedule]\ntimezone = '../x'\n[model]", "is no known time zone"),
        ("[model]", "[schedule]\ncron = '0 4 * *'\n[model]", "has 4 fields; expected five"),
        ("[model]", "[schedule]\ncron = '0 25 * * *'\n[model]", "[schedule] cron has hour 25; expected 0 to 23"),
        ("[model]", "[schedule]\nfreshness_hours = 0.01\n[model]", "[schedule] freshness_hours is 0.01"),
        ("[model]", "[alerts.owners]\n'*' = 'Nina'\n[model]", '[alerts] owners has "Nina" for *; expected team:NAME'),
        ("[model]", "[splits]\ntest = 1.0\n[model]", "[splits] test is 1.0; expected a whole number"),
        ("[model]", "[splits]\ntest = 0\n[model]", "[splits] test is 0; expected a whole number"),
        ("[model]", "[splits]\ntest = 0.5\ncertify = 0.5\n[model]", "leave some for training"),
        (
            "[model]",
            "[scoring]\nmemory_limit = 'lots'\n[model]",
            "[scoring] memory_limit is 'lots'; write a number and its unit",
        ),
        (
            "[model]",
            "[environment]\nname = '../prod'\n[model]",
            "[environment] name is '../prod'; it names a folder: letters",
        ),
        ("[model]", "[prompt.answers]\n[model]", "not a setting"),
        ("[model]", "[model", "not valid TOML"),
    ],
)
def test_a_wrong_value_is_one_line_with_the_file_the_key_and_what_was_found(tmp_path, old, new, said):
    path = write(tmp_path, MINIMAL.replace(old, new))
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert said in message


def test_every_wrong_value_is_told_at_once_and_only_the_rest_of_many_is_counted(tmp_path):
    many = "[scoring]\nmemory_limit = 'lots'\nlanes = -1\nthreads = -1\nmax_pairs = -1\n[gates]\nmin_auc = 2.0\n[model]"
    message = refusal(write(tmp_path, MINIMAL.replace("[model]", many)))
    assert message.count("; and [scoring]") == 2
    assert message.endswith("(and 2 more)")
    assert "more" not in refusal(
        write(tmp_path, MINIMAL.replace("[model]", "[scoring]\nlanes = -1\nthreads = -1\n[model]"))
    )


def test_yes_and_no_may_not_be_the_same_word(tmp_path):
    assert 'both "Yes"' in refusal(write(tmp_path, MINIMAL.replace("[calibration]", 'no = "Yes"\n[calibration]')))


def test_a_missing_or_unreadable_file_is_one_line(tmp_path):
    assert "no such settings file" in refusal(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    assert "not UTF-8 at byte 5" in refusal(tmp_path / "latin.toml")
    assert "cannot be read" in refusal(tmp_path)


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path):
    plain = load_settings(write(tmp_path))
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_settings(path).model_dump() == plain.model_dump()


def test_an_address_in_the_file_is_refused_without_repeating_it(tmp_path):
    message = refusal(write(tmp_path, MINIMAL + "[alerts]\nurls = ['https://hooks.example/secret']\n"))
    assert "env:NAME" in message
    assert "secret" not in message
    good = load_settings(write(tmp_path, MINIMAL + "[alerts]\nurls = ['env:ALERT_URL']\n"))
    assert good.alerts.urls == ["env:ALERT_URL"]


@pytest.mark.parametrize(
    ("alerts", "said"),
    [
        ("urls = 'https://hooks.example/secret'", "[alerts] urls is not what it should be"),
        ("urls = [['https://hooks.example/secret']]", "[alerts] urls is not what it should be"),
        ("dead_man = 'https://ping.example/secret'", "[alerts] dead_man number 1 is not of the form env:NAME"),
        (
            "ui_url = 'https://me:secret@ui.example'",
            "[alerts] ui_url is not what it should be; write https://HOST/PATH,",
        ),
        (
            "reports_url = 'file:///reports'\ndead_man = 'file:///secret'",
            "; and [alerts] reports_url is not",
        ),
        ("[[alerts.routes]]\nurls = ['https://hooks.example/secret']", "number 1 is not of the form env:NAME"),
        ("[[alerts.routes]]\ngates = ['volume_change']", "[alerts.routes.0] urls is missing"),
        ("[[alerts.routes]]\nurls = []", "[alerts.routes] urls is not what it should be"),
        ("[[alerts.routes]]\nurls = ['env:A']\ngate = ['x']", 'gate is not a setting; did you mean "gates"'),
        (
            "[[alerts.routes]]\nurls = ['env:A']\ngates = ['volume_chang']",
            '[alerts.routes] has gates "volume_chang", which no gate is; did you mean "volume_change"',
        ),
        ("[[alerts.routes]]\nurls = ['env:A']\nassets = ['prediction']", 'did you mean "predictions"'),
        ("[[alerts.routes]]\nurls = ['env:A']\nseverities = ['FATAL']", "'ERROR' or 'WARN'"),
    ],
)
def test_a_wrong_alert_setting_is_named_and_no_secret_repeated(tmp_path, alerts, said):
    message = refusal(write(tmp_path, MINIMAL + "[alerts]\n" + alerts + "\n"))
    assert said in message
    assert "secret" not in message


def test_overrides_from_the_environment_win_and_keep_their_types(tmp_path):
    env = {
        "SEMLABEL__SPLITS__TEST": "40",
        "SEMLABEL__SCHEDULE__ENABLED": "false",
        "SEMLABEL__PROMPT__YES": "Ja",
        "SEMLABEL__ENVIRONMENT__NAME": "1e5",
        "SEMLABEL__SOURCES__COLUMNS__ENTITIES__TEXT": "12",
        "SEMLABEL__CALIBRATION__MIN_PRECISION": "",
        "SEMLABEL__CALIBRATION__MAX_FPR": "0.01",
        "SEMLABEL_CONFIG": "not an override",
    }
    settings = load_settings(write(tmp_path), env)
    assert settings.splits.test == 40
    assert settings.schedule.enabled is False
    assert settings.prompt.yes == "Ja"
    assert settings.environment.name == "1e5"
    assert settings.sources.columns_for("entities")["text"] == "12"
    assert (settings.calibration.min_precision, settings.calibration.max_fpr) == (None, 0.01)


def test_an_override_cannot_smuggle_in_a_second_key(tmp_path):
    settings = load_settings(write(tmp_path), {"SEMLABEL__PROMPT__YES": '"Ja"\nother = 1'})
    assert settings.prompt.yes == '"Ja"\nother = 1'


def test_a_mistyped_override_is_refused(tmp_path):
    message = refusal(write(tmp_path), {"SEMLABEL__SPLITS__TST": "1"})
    assert 'did you mean "test"?' in message
    assert "SECTION__KEY" in refusal(write(tmp_path), {"SEMLABEL__SPLITS": "1"})


def test_a_file_extends_another_table_by_table(tmp_path):
    write(tmp_path, MINIMAL + "[training]\nepochs = 2\nseed = 3\n", "shared/base.toml")
    path = write(tmp_path, 'extends = "../shared/base.toml"\n[training]\nseed = 4\n', "jobs/pipeline.toml")
    settings = load_settings(path)
    assert (settings.training.epochs, settings.training.seed) == (2.0, 4)
    # Inputs belong to the file that names them, state to the file that was asked for.
    assert settings.sources.entities == str(tmp_path / "shared" / "entities.csv")
    assert settings.model.base == str(tmp_path / "shared" / "base")
    assert settings.model.name == "base"
    assert settings.paths.state == tmp_path / "jobs" / "run"


def test_an_encoder_is_a_folder_of_the_file_that_names_it_or_a_name(tmp_path):
    (tmp_path / "tfidf").mkdir()
    (tmp_path / "here").mkdir()
    for given, meant in (
        ("tfidf", "tfidf"),
        ("./tfidf", str(tmp_path / "tfidf")),
        ("here", str(tmp_path / "here")),
        ("somebody/encoder", "somebody/encoder"),
    ):
        path = write(tmp_path, MINIMAL + f'[shortlist]\nsize = 5\nencoder = "{given}"\n')
        assert load_settings(path).shortlist.encoder == meant
    assert load_settings(write(tmp_path)).shortlist.size == 0


def test_a_circle_of_extends_is_refused(tmp_path):
    write(tmp_path, 'extends = "b.toml"', "a.toml")
    write(tmp_path, 'extends = "a.toml"', "b.toml")
    assert "break the circle" in refusal(tmp_path / "a.toml")


def test_a_base_that_is_no_folder_stays_a_name_on_the_hub(tmp_path):
    path = write(tmp_path, MINIMAL.replace("./base", "HuggingFaceTB/SmolLM2-135M"))
    assert load_settings(path).model.base == "HuggingFaceTB/SmolLM2-135M"
    (tmp_path / "HuggingFaceTB" / "SmolLM2-135M").mkdir(parents=True)
    assert load_settings(path).model.base == str(tmp_path / "HuggingFaceTB" / "SmolLM2-135M")


def test_a_duckdb_source_keeps_its_query_and_gets_an_absolute_path(tmp_path):
    path = write(tmp_path, MINIMAL.replace("entities.csv", "duckdb:a.duckdb#SELECT '#' AS entity_id"))
    assert load_settings(path).sources.entities == f"duckdb:{tmp_path}/a.duckdb#SELECT '#' AS entity_id"


def test_column_names_of_one_file_win_over_those_of_all_files(tmp_path):
    columns = """
[sources.columns]
entity_id = "code"
text = "description"
candidate_text = "title"
[sources.columns.references]
entity_id = "occupation"
"""
    sources = load_settings(write(tmp_path, MINIMAL + columns)).sources
    assert sources.columns_for("entities") == {
        "entity_id": "code",
        "text": "description",
        "text_version": "text_version",
    }
    assert sources.columns_for("catalog") == {"candidate_id": "candidate_id", "text": "title", "group": "group"}
    assert sources.columns_for("references") == {
        "entity_id": "occupation",
        "candidate_id": "candidate_id",
        "label": "label",
    }


def test_environments_never_share_a_path(tmp_path):
    path = write(tmp_path, MINIMAL + "[publish]\ndir = 'public'\n")
    dev = load_settings(path, {"SEMLABEL__ENVIRONMENT__NAME": "dev"}).paths
    prod = load_settings(path, {"SEMLABEL__ENVIRONMENT__NAME": "prod"}).paths
    assert dev.state == tmp_path / "run" / "dev"
    assert dev.published == tmp_path / "public" / "dev"
    assert not {*vars(dev).values()} & {*vars(prod).values()}


def test_created_folders_can_be_read_by_their_owner_only(tmp_path):
    paths = load_settings(write(tmp_path)).paths
    paths.create()
    for folder in (paths.state, paths.labelers, paths.published, paths.preview, paths.dagster_home):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not paths.warehouse.exists()


def test_settings_cannot_be_changed_by_accident_and_survive_a_copy(tmp_path):
    settings = load_settings(write(tmp_path))
    with pytest.raises(ValueError, match="frozen"):
        settings.splits.seed = 8
    copied = settings.model_copy(update={"splits": settings.splits.model_copy(update={"seed": 8})})
    assert (copied.splits.seed, copied.root, copied.path) == (8, tmp_path, tmp_path / "pipeline.toml")
    assert isinstance(copied, Settings)


def test_loading_settings_stays_cheap():
    import subprocess

    code = "import sys, semlabel.settings, semlabel.sources, semlabel.splits, semlabel.pairs, semlabel.references;"
    heavy = "{'torch','transformers','great_expectations','sklearn','scipy','dagster','pandas','pyarrow','duckdb'}"
    result = subprocess.run(
        [sys.executable, "-c", f"{code} print({heavy} & set(sys.modules))"], capture_output=True, text=True
    )
    assert result.stdout.strip() == "set()", result.stderr
