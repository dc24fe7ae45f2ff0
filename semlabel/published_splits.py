"""The split of every entity as readers of the published table are told it: which rows are no evidence.

A labeler is better where it learnt than elsewhere, so a row of an entity that it may have learnt from must not pass for
one that was not seen. Whoever is left out of every split tonight may have been used before, or have a text that was:
such rows say `train`, too. Goes by what the warehouse remembers of entities and texts; knows nothing of pairs, so a
split costs nothing to store and moves no margin. Deliberately does not look for near-duplicates among entities that
were never drawn: nobody compared those.
"""

from semlabel.splits import LEFT_OUT, TRAIN

# Whom an earlier version left out (an empty split) may have trained before it resembled an entity of another split.
MAY_HAVE_TRAINED = f"""SELECT entity_id FROM training_pairs UNION ALL
SELECT entity_id FROM remembered_splits WHERE split IN ('{TRAIN}', '{LEFT_OUT}')"""
"""The entities that a labeler may have learnt from, also from training pairs that others have replaced since."""


def with_published_split(entities: str) -> str:
    """The query of a relation with the columns of `entities`, its `split` as it is published.

    An entity that is in a split tonight is told as what it is. Any other is told as `train` where it, another entity
    with its text or one of its near-duplicates may have trained, and else as in no split.
    """
    return f"""WITH learnt AS (
    SELECT entity_id, text_key, group_id FROM entities SEMI JOIN ({MAY_HAVE_TRAINED}) USING (entity_id)),
learnt_texts AS (
    SELECT text_key FROM learnt UNION ALL
    SELECT text_key FROM former_texts SEMI JOIN ({MAY_HAVE_TRAINED}) USING (entity_id))
SELECT * REPLACE (CASE
    WHEN split <> '{LEFT_OUT}' THEN split
    WHEN text_key IN (FROM learnt_texts) THEN '{TRAIN}'
    WHEN group_id IN (SELECT group_id FROM learnt WHERE group_id IS NOT NULL) THEN '{TRAIN}'
    ELSE '{LEFT_OUT}' END AS split)
FROM {entities}"""
