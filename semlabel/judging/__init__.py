"""The human loop: pairs picked for people to judge, and their judgements as reference labels.

Knows sampling designs and the files that people work with; deliberately knows nothing of Dagster or of the command
line.
"""
