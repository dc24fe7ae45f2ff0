"""What Dagster loads where there is one labeler: the definitions of the settings file in force."""

from pipeline.assembly import build_defs

defs = build_defs()
