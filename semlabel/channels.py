"""The channels people are reached by: any address that `apprise` knows, and one address that is only pinged.

A channel is named `env:NAME`; its address is read from that variable when something is sent, and goes nowhere else.
Errors are told in a few words of our own: what the libraries say may quote the address, so their logs are kept apart
while they work. Deliberately knows nothing of alerts.
"""

import logging
import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

ENV_PREFIX = "env:"
_APP = "semlabel"
_PING_SECONDS = 10.0
# Whoever may write an address, or a part of it, into a log.
_TALKATIVE = ("apprise", "urllib3", "requests", "oauthlib", "requests_oauthlib")
_one_at_a_time = threading.Lock()


def send(env: Mapping[str, str], target: str, title: str, body: str) -> str | None:
    """Send a message to the channel `target`; None when it was accepted, else in a few words why not.

    Never raises for a channel's sake, and no word of the answer comes from the address or the library.
    """
    address = _address(env, target)
    if address is None:
        return f"variable {target.removeprefix(ENV_PREFIX)} is not set"
    from apprise import Apprise, AppriseAsset, NotifyFormat

    asset = AppriseAsset(app_id=_APP, app_desc=_APP, app_url="", image_url_mask="", image_url_logo="")
    with _private_logs() as said:
        try:
            service = Apprise.instantiate(address, asset=asset)
            if service is None:
                return f"variable {target.removeprefix(ENV_PREFIX)} holds no address that apprise knows"
            accepted = Apprise([service], asset=asset).notify(body=body, title=title, body_format=NotifyFormat.TEXT)
        except Exception as error:
            return f"{type(error).__name__} while sending"
    return None if accepted else _why(said)


def ping(env: Mapping[str, str], target: str) -> str | None:
    """Fetch the address of `target`, which tells a dead-man service that all is well; None when it answered."""
    problem = ping_problem(env, target)
    if problem is not None:
        return problem
    with _private_logs():
        try:
            with urllib.request.urlopen(_address(env, target) or "", timeout=_PING_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            return f"the service answered HTTP {error.code}"
        except OSError:
            return "no connection"
        except Exception as error:
            return f"{type(error).__name__} while sending"


def ping_problem(env: Mapping[str, str], target: str) -> str | None:
    """Why the address of `target` cannot be pinged, as far as the address alone tells; nothing is sent."""
    variable, address = f"variable {target.removeprefix(ENV_PREFIX)}", _address(env, target)
    if address is None:
        return f"{variable} is not set"
    try:
        parts = urllib.parse.urlsplit(address)
        readable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{variable} holds no address that can be read"
    if parts.scheme not in ("http", "https"):
        return f"{variable} holds no http address"
    # What urllib would take for a part of the host's name, or refuse only when it sends.
    sent = parts.path + parts.query
    if not readable or "@" in parts.netloc or not sent.isascii() or re.search(r"[\x00-\x20\x7f]", address):
        return f"{variable} holds an address that cannot be pinged: write https://HOST/PATH, without a user or spaces"
    return None


def _address(env: Mapping[str, str], target: str) -> str | None:
    return env.get(target.removeprefix(ENV_PREFIX), "").strip() or None


def _why(said: list[str]) -> str:
    """Why a message was not accepted, as far as it can be told without quoting anybody."""
    text = " ".join(said)
    code = re.search(r"error=(\d{3})\b", text)
    if code:
        return f"the service answered HTTP {code[1]}"
    return "no connection" if "onnection error" in text else "the service did not accept the message"


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def _private_logs() -> Iterator[list[str]]:
    """Keep what the libraries would log while the block runs: nothing of it reaches anybody's handlers."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    collector = _Collector()
    with _one_at_a_time:
        before = [(logger.propagate, list(logger.handlers)) for logger in loggers]
        for logger in loggers:
            logger.propagate, logger.handlers = False, [collector]
        try:
            yield collector.said
        finally:
            for logger, (propagate, handlers) in zip(loggers, before, strict=True):
                logger.propagate, logger.handlers = propagate, handlers
