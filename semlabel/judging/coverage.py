"""Whom the promise of a threshold covers, in one sentence: what was judged need not be like the rest of the table.

Knows what an unlisted pair means and how a split came to be judged; deliberately knows nothing of bounds.
"""


def covered(unlisted: str, by_chance: bool, in_splits: int, in_none: int) -> str:
    """What to add to a promise; "" where it holds for the table.

    `by_chance`: a random sample judges the split that proves. `in_splits` entities of the table are in a split,
    `in_none` are in none, so none of theirs could be drawn.
    """
    if unlisted == "negative":
        return ""
    if not by_chance:
        return "This holds for pairs like those that are listed, not for the table."
    if in_none:
        return (
            f"This holds for the {in_splits:,} entities that references or judgements name, not for the other "
            f"{in_none:,} of the table."
        )
    return ""
