"""The packed-generation baseline, done properly: numbered candidates in one prompt, one answer a line, written out.

What exact scoring is measured against. `prompt` builds the token ids, `answers` reads an answer list strictly,
`rows` grows many prompts over one cache, `generator` decodes, `examples` is the training format. Knows nothing of
gates, thresholds or tables.
"""
