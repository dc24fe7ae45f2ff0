"""The settings of alerts: who hears of which failed gate, and of a run that failed.

Knows names of variables, never the addresses in them, and nothing of how an alert is sent.
"""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from semlabel.settings_section import NonEmpty, Section, WebAddress
from semlabel.settings_words import nearest

GATE = "{gate}"
"""What stands in `runbook_url` for the name of the gate."""
# Whom Dagster takes for an owner; it refuses others with a traceback.
_OWNER = re.compile(r"team:.+|[A-Za-z0-9_][A-Za-z0-9._%+-]*@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")


class Route(Section):
    """Where some alerts go: those of `assets`, `gates`, `severities` and `owners` (empty: whichever) to `urls`.

    A run that failed is an alert of the gate `run`, with its job for an asset.
    """

    assets: list[NonEmpty] = []
    gates: list[NonEmpty] = []
    severities: list[Literal["ERROR", "WARN"]] = []
    owners: list[NonEmpty] = []
    urls: Annotated[list[str], Field(min_length=1)]

    @field_validator("urls")
    @classmethod
    def _only_variables(cls, urls: list[str]) -> list[str]:
        return _named_variables(urls)

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        # A mistyped name would match nothing, and nobody would notice before an alert is missing.
        from semlabel.gates.registry import GATES
        from semlabel.run_news import JOBS, RUN

        # A run that failed is told as `run` of its job.
        assets = {gate.asset for gate in GATES.values()}
        known = {"gates": [*GATES, RUN], "assets": [*sorted(assets), *JOBS]}
        for key, names in known.items():
            for name in getattr(self, key):
                if name not in names:
                    raise ValueError(f'has {key} "{name}", which no gate is; {nearest(name, names)}')
        return self

    def takes(self, asset: str, gate: str, severity: str, owner: str) -> bool:
        """Whether this route is meant for an alert."""
        asked = ((self.assets, asset), (self.gates, gate), (self.severities, severity), (self.owners, owner))
        return all(not wanted or found in wanted for wanted, found in asked)


class Alerts(Section):
    """Who hears of failed gates and failed runs. URLs carry secrets, so the file only names the variables: `env:NAME`.

    An alert goes to the `urls` of every route that takes it, and to `urls` when none does. A gate that stays red is
    told again after `repeat_hours`. `dead_man` is pinged after every good night. `ui_url`, `reports_url` and
    `runbook_url` are where the links in an alert start; `{gate}` in `runbook_url` stands for the gate's name, and
    without it `/GATE.md` is added. `owners` has one name per asset, `"*"` for the others.
    """

    urls: list[str] = []
    routes: list[Route] = []
    dead_man: str | None = None
    repeat_hours: Annotated[float, Field(gt=0, le=100_000)] = 24.0
    ui_url: WebAddress | None = None
    reports_url: WebAddress | None = None
    runbook_url: WebAddress | None = None
    owners: dict[str, str] = {}

    @field_validator("urls")
    @classmethod
    def _only_variables(cls, urls: list[str]) -> list[str]:
        return _named_variables(urls)

    @field_validator("dead_man")
    @classmethod
    def _only_a_variable(cls, url: str | None) -> str | None:
        return url if url is None else _named_variables([url])[0]

    @field_validator("runbook_url")
    @classmethod
    def _only_the_gate(cls, url: str | None) -> str | None:
        if re.search(r"[{}]", (url or "").replace(GATE, "")):
            raise ValueError(f"has braces around something else than {GATE}; write https://HOST/PATH/{GATE}.html")
        return url

    @field_validator("owners")
    @classmethod
    def _people_or_teams(cls, owners: dict[str, str]) -> dict[str, str]:
        for asset, owner in owners.items():
            if not _OWNER.fullmatch(owner):
                raise ValueError(f'has "{owner}" for {asset}; expected team:NAME or an e-mail address')
        return owners

    @property
    def channels(self) -> list[str]:
        """Every channel that an alert may go to, each once."""
        return list(dict.fromkeys([*self.urls, *(url for route in self.routes for url in route.urls)]))

    @property
    def addresses(self) -> list[str]:
        """Every variable that an address is read from."""
        return [*self.channels, *([self.dead_man] if self.dead_man else [])]

    def owner_of(self, asset: str) -> str:
        """Who answers for an asset."""
        return self.owners.get(asset, self.owners.get("*", "team:labeling"))

    def recipients(self, asset: str, gate: str, severity: str) -> list[str]:
        """The channels that an alert goes to."""
        owner = self.owner_of(asset)
        taking = [route for route in self.routes if route.takes(asset, gate, severity, owner)]
        return list(dict.fromkeys(url for route in taking for url in route.urls)) if taking else list(self.urls)


def _named_variables(urls: list[str]) -> list[str]:
    for number, url in enumerate(urls, start=1):
        if not re.fullmatch(r"env:[A-Za-z_][A-Za-z0-9_]*", url):
            raise ValueError(f"number {number} is not of the form env:NAME; put the address into that variable")
    return urls
