"""A process that is watched: which addresses outside this machine it asked for, and which files it left at home.

The sockets are trapped by a `sitecustomize` module that every Python process of the test imports at its start, children
included; an attempt to leave is noted and fails as a machine without a network would.
"""

import os
from pathlib import Path

_TRAP = """
import ipaddress, os, socket

def _note(address):
    with open(os.environ["SEMLABEL_TEST_TRAP"], "a") as file:
        file.write(f"{address!r}\\n")
    raise OSError(101, "Network is unreachable")

def _inside(address):
    if not isinstance(address, tuple):
        return True  # a socket of the file system
    host = address[0].decode() if isinstance(address[0], bytes) else str(address[0] or "127.0.0.1")
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"

def _trapped(name, address_of):
    original = getattr(socket.socket, name)
    def call(self, *arguments):
        if self.family != socket.AF_UNIX and not _inside(address_of(arguments)):
            _note(address_of(arguments))
        return original(self, *arguments)
    setattr(socket.socket, name, call)

_trapped("connect", lambda arguments: arguments[0])
_trapped("connect_ex", lambda arguments: arguments[0])
_trapped("sendto", lambda arguments: arguments[-1])
_getaddrinfo = socket.getaddrinfo
def _looked_up(host, *arguments, **options):
    if not _inside((host, 0)):
        _note(host)
    return _getaddrinfo(host, *arguments, **options)
socket.getaddrinfo = _looked_up
"""


class Watched:
    """The environment of such a process, and what became of it; trap, home and temporary files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.home, self.temporary, self._trap = folder / "home", folder / "tmp", folder / "trap"
        for place in (self.home, self.temporary, self._trap):
            place.mkdir(parents=True)
        (self._trap / "sitecustomize.py").write_text(_TRAP)

    def environment(self, **variables: str) -> dict[str, str]:
        """For `subprocess`: what is set here, without what would name another home, cache or project."""
        hidden = ("SEMLABEL_CONFIG", "DAGSTER_HOME", "MPLCONFIGDIR", "HF_HOME")
        kept = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("XDG_")}
        paths = os.pathsep.join(filter(None, [str(self._trap), variables.pop("PYTHONPATH", "")]))
        own = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PYTHONPATH": paths}
        return kept | own | {"SEMLABEL_TEST_TRAP": str(self._trap / "asked")} | variables

    @property
    def asked(self) -> list[str]:
        """The addresses outside this machine that were asked for."""
        file = self._trap / "asked"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def left(self) -> list[str]:
        """The files that lie in the home and in the folder of temporary files."""
        return [str(path) for place in (self.home, self.temporary) for path in place.rglob("*") if path.is_file()]
