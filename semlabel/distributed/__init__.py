"""Margins of more entities than one machine scores: rounds as stages of Ray Data, on one machine or on a cluster.

Needs the extra `semlabel[ray]`; importing this does not. Deliberately knows nothing of the warehouse: only
`plan_rounds` knows the refresh plan.
"""

from semlabel.distributed.accounting import check_exactly_once
from semlabel.distributed.config import MisConfig, Pool
from semlabel.distributed.processor import build_mis_processor
from semlabel.distributed.runtime import RaySettings, ray_session

__all__ = ["MisConfig", "Pool", "RaySettings", "build_mis_processor", "check_exactly_once", "ray_session"]
