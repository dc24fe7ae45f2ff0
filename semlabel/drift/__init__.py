"""Whether labels and texts drift while one labeler is in use, told apart from chance.

`chance` has the tests, `sums` the quantities whose unit is the entity, `spans` what nights add up to, `labels` and
`quality` the judgement, `night` the SQL, `state` the file that each published version carries.
"""
