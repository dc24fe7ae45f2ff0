"""The version of the scoring code: part of every scorer digest, so it must be importable without torch.

Deliberately knows nothing else.
"""

# Raise it whenever the same weights, tokens and precision may give other margins than before.
SCORING_CODE_VERSION = 3
