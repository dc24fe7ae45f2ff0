"""A cron line that Dagster would answer with a traceback is refused in the settings, and one that it takes is not."""

import pytest
from dagster._utils.schedules import is_valid_cron_string

from semlabel.settings_cron import check_cron

WRONG = [
    ("0 4 * *", "has 4 fields; expected five: minute hour day month weekday"),
    ("@daily", "has 1 fields"),
    ("0 4 * * * *", "has 6 fields"),
    ("60 4 * * *", "has minute 60; expected 0 to 59"),
    ("0 25 * * *", "has hour 25; expected 0 to 23"),
    ("0 4,24 * * *", "has hour 24; expected 0 to 23"),
    ("0 4 0 * *", "has day 0; expected 1 to 31"),
    ("0 4 * 0-3 *", "has month 0; expected 1 to 12 or jan feb"),
    ("0 4 * mon *", "has month mon; expected 1 to 12 or jan feb"),
    ("0 4 * * 8", "has weekday 8; expected 0 to 7 or sun mon"),
    ("0 4 * * mon#2,8#1", "has weekday 8"),
    ("*/0 4 * * *", 'has minute "*/0"; expected numbers, *, lists'),
    ("0 4-x/2/3 * * *", 'has hour "4-x/2/3"; expected numbers'),
    ("-1 4 * * *", 'has minute "-1"; expected numbers'),
    ("1,,2 4 * * *", 'has minute ""; expected numbers'),
    ("0 \u0664 * * *", "has hour"),
    ("h 4 * * *", "has minute h; expected 0 to 59"),
    ("0 4 31 2,4 *", "has day 31 of month 2,4, which never comes"),
    ("0 4 30 feb *", "has day 30 of month feb, which never comes"),
]
RIGHT = [
    "0 4 * * *",
    "30 5 * * 1-5",
    "*/15 0-6,22 1,15 * mon-fri",
    "5/10 22-2 * JAN,jul 7",
    "0 4 L * ?",
    "0 4 ? * sun#1",
    "0 4 * * fri-mon",
    "0 4 29 2 *",
    "0 4 31 1-3/2 *",
]
PIECES = (
    *("*", "?", "0", "1", "5", "7", "8", "12", "13", "23", "24", "28", "29", "30", "31", "32", "59", "60", "999", "07"),
    *("1-5", "5-1", "0-5", "5-60", "30-31", "30/2", "*/2", "*/0", "*/60", "5/10", "5/0", "/5", "1-5/2", "1-5/0"),
    *("1,5", "1,", ",", "1,60", "-1", "1-", "1--5", "*-5", "1.5", "+1", "x", "r", "h", "l", "L", "l5", "l9", "15-l"),
    *("mon", "MON", "mon-fri", "mon#2", "mon#6", "2#1", "9#1", "mon#2,3", "mon#2,tue#1"),
    *("jan", "jan-mar", "feb", "dec-feb", "jan-x", "sun-7", "7-7", "0-7"),
)


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_line_that_is_wrong_is_told_by_its_field(line, said):
    with pytest.raises(ValueError) as refused:
        check_cron(line)
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("line", RIGHT)
def test_a_line_that_dagster_takes_is_taken(line):
    check_cron(line)
    assert is_valid_cron_string(line)


def test_nothing_passes_that_dagster_refuses():
    passed = 0
    for place in range(5):
        for piece in PIECES:
            for rest in ("*", "2"):
                line = " ".join([rest] * place + [piece] + [rest] * (4 - place))
                try:
                    check_cron(line)
                except ValueError:
                    continue
                passed += 1
                assert is_valid_cron_string(line), line
    assert passed > 150
