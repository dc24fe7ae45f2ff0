"""The smallest settings file that a command can be tried on."""


def smallest(template: str = "{entity} {candidate}", base: str = "nobody/model") -> str:
    """A `pipeline.toml` with tables beside it and a model of the hub, or a folder; none of them need exist."""
    return f"""
[sources]
entities = "entities.csv"
catalog = "catalog.csv"
references = "references.csv"

[model]
base = "{base}"

[prompt]
template = "{template}"

[splits]
calibrate = 1
certify = 1
test = 1

[calibration]
min_precision = 0.5
"""
