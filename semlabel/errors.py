"""The errors a user can mend: each message is one line that says what was found and what to do.

Knows nothing of where the errors are shown. Programming errors are not here: they stay ordinary exceptions and
keep their tracebacks.
"""


class SemlabelError(Exception):
    """Bad input, bad settings or a refused operation. The command line prints it as one line and exits 2."""


class SettingsError(SemlabelError):
    """`pipeline.toml` (or an override in the environment) is missing, unreadable or says something unknown."""


class SourceError(SemlabelError):
    """A source file is missing, unreadable, or has not the columns it should have."""


class PromptError(SemlabelError):
    """The prompt cannot be used with this tokenizer, or one text does not fit it."""


class ModelRefused(SemlabelError):
    """The model has layers that the chosen scoring method cannot serve exactly."""


class LabelerError(SemlabelError):
    """A labeler directory is incomplete, edited, corrupt or fails its self-check."""


class WarehouseError(SemlabelError):
    """The warehouse or `ops.sqlite` cannot be opened, is newer than this code, or ran out of room."""


class LeaseHeld(SemlabelError):
    """Another run holds the lease and did not let go within the waiting time. The message names the holder."""


class GateBlocked(SemlabelError):
    """A gate stands in the way of what was asked. The command line exits 1."""


class DistributedError(SemlabelError):
    """Ray is not installed or cannot be reached, or a distributed job lost, doubled or refused a pair."""


def first_line(error: BaseException) -> str:
    """What an error of a library says, in its first line; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def in_one_line(error: BaseException) -> str:
    """An error in one line: ours as it is, any other with what it is called."""
    return str(error) if isinstance(error, SemlabelError) else f"{type(error).__name__}: {first_line(error)}"
