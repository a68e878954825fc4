"""Moesaic on a Ray cluster: batch jobs and datasets on several machines.

    pip install moesaic[ray]

    python -m moesaic.ray.batch MODEL -i requests.jsonl -o answers.jsonl    # or: moesaic batch ... --ray auto
    moesaic.ray.process(dataset, MODEL)                                     # ray.data

Ray is imported when it is first needed; every node has the package and the model.
"""

from ._plan import ClusterNode, ClusterPlan, plan_cluster
from ._processor import MoesaicProcessor, process

__all__ = ["ClusterNode", "ClusterPlan", "MoesaicProcessor", "plan_cluster", "process"]
