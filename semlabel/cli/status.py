"""`semlabel status`: the last run, the gates, the labeler, its quality and the current publication."""

from pathlib import Path

from semlabel.cli.common import DEFAULT_CONFIG, ConfigOption, JsonOption, operations_of, project, show, show_json


def status(config: ConfigOption = DEFAULT_CONFIG, json: JsonOption = False) -> None:
    """Show the last run, the gates, the labeler and the publication.

    Reads small files only, so it answers at once while a run is at work.

    \b
    Examples:
      semlabel status
      semlabel status --json | jq '.gates[] | select(.verdict != "pass")'
    """
    settings = project(Path(config))
    from semlabel.cli.document import status_document

    document = status_document(settings, operations_of(settings))
    if json:
        show_json(document)
        return
    from semlabel.cli.summary import status_text

    show(status_text(document, settings))
