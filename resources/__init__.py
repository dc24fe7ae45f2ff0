"""What the assets work with: settings, `ops.sqlite`, the warehouse and the scorer, as Dagster resources.

Setting one up costs nothing: files are opened and models loaded when a step first asks.
"""
