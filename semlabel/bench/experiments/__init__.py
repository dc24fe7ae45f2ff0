"""The experiments behind the claims: trainings compared at equal pairs on the same held-out entities.

`problem` holds out the entities, `learners` train and score, `cells` keeps what is done, `quality` and `curves` are
the statistics; each experiment is a plan and a loop over cells. Knows nothing of Dagster, gates or promotion: no model
that is trained here is ever a labeler.
"""
