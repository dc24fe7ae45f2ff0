"""Why a published pair changed, in words for readers of a report. Knows the reasons of the change feed only."""

REASONS = {
    "added": "the pair is new",
    "removed": "the pair is gone",
    "shortlist": "the entity's shortlist changed",
    "scorer": "another labeler computed the margin",
    "threshold": "the threshold moved",
    "entity_text": "the entity's text was edited",
    "candidate_text": "the candidate's text was edited",
    "rescored": "the margin was computed anew",
    "online_update": "it was labeled online",
    "rollback": "an earlier version was restored",
}
