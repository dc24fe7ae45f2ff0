"""The recipe, stage by stage: what each asset makes, with the gates that must pass before the next stage.

Heavy libraries are imported inside functions: this package is loaded by every code server, run and step.
"""
