"""Several Ray nodes on this machine, one of which is lost in the middle of a job."""

import pyarrow as pa
import pytest

from semlabel.distributed import MisConfig, Pool, RaySettings, build_mis_processor, check_exactly_once, ray_session
from semlabel.distributed.runtime import require_ray
from tests.serving_fixtures import make_labelers

SCORER = {"scorer": 1.0}
STORE = 80_000_000


@pytest.fixture
def cluster():
    """A head that scores nothing and two nodes that have room for one scorer each."""
    require_ray(alone=True)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE})
    cluster.scorers = [cluster.add_node(num_cpus=1, resources=SCORER, object_store_memory=STORE) for _ in range(2)]
    yield cluster
    cluster.shutdown()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_lost_node_loses_and_doubles_nothing(cluster, tmp_path):
    config = MisConfig(
        labeler=make_labelers(tmp_path)[0],
        catalog={f"c{number}": f"keep records number {number}" for number in range(60)},
        device="cpu",
        threads=1,
        items_per_round=20,
        entities_per_block=1,
        rounds_per_batch=1,
        tokenizers=Pool(cpus=0.25),
        scorers=Pool(min=2, max=2, cpus=0.5, resources=SCORER),
        exactly_once=False,
    )
    with ray_session(RaySettings(cluster.address)):
        data = require_ray().data
        inputs = data.from_arrow(
            pa.table({"entity_id": [f"e{n}" for n in range(60)], "text": [f"plans work {n}" for n in range(60)]})
        )
        batches = []
        for batch in build_mis_processor(config)(inputs).iter_batches(batch_size=None, batch_format="pyarrow"):
            if not batches:
                cluster.remove_node(cluster.scorers[0], allow_graceful=False)
            batches.append(batch)
        assert len(batches) > 1
        found = data.from_arrow(pa.concat_tables(batches))
        assert check_exactly_once(inputs, found, config) == 60 * 60
