"""What the command `bench` measures: speed with its exactness beside it, what changes a decision that should not, and
trainings compared at equal pairs (`experiments`).

Every measurement writes NAME.json (environment and flat cells), NAME.md and NAME.png. Knows nothing of Dagster, gates
or what a labeler is used for; the command line hands in a model and reads nothing back but files.
"""
