"""Pictures of which experts are used, by matplotlib (``pip install moesaic[plot]``). Each function draws into
``ax``, or into axes of its own, and returns them."""

from __future__ import annotations

from typing import Any

from ._core import RoutingTrace


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def heatmap(matrix: Any, ax: Any = None, **options: Any) -> Any:
    """A matrix of experts ([layers, experts]): an EAM, a residency. ``options`` are imshow's."""
    ax = _axes(ax)
    image = ax.imshow(matrix, aspect="auto", interpolation="nearest", **options)
    ax.set_xlabel("expert")
    ax.set_ylabel("layer")
    ax.figure.colorbar(image, ax=ax)
    return ax


def activations(trace: RoutingTrace, layer: int, ax: Any = None, **options: Any) -> Any:
    """The experts that each token of a trace's first sequence used in one of its layers, token by
    token."""
    import numpy as np

    ax = _axes(ax)
    experts = trace.sequences[0].experts[:, layer]  # [tokens, top_k]
    used = np.zeros((trace.num_experts, len(experts)), np.uint8)
    used[experts.T, np.arange(len(experts))] = 1
    ax.imshow(used, aspect="auto", interpolation="nearest", **options)
    ax.set_xlabel("token")
    ax.set_ylabel("expert")
    return ax


def popularity(eam: Any, ax: Any = None, **options: Any) -> Any:
    """How uses are spread: for each layer of a matrix of counts ([layers, experts]) the share of uses that
    fall on its most used experts."""
    import numpy as np

    ax = _axes(ax)
    counts = np.sort(np.asarray(eam, np.float64), axis=1)[:, ::-1]
    for layer, row in enumerate(counts):
        if row.sum() > 0:
            ax.plot(np.arange(1, len(row) + 1), np.cumsum(row) / row.sum(), label=f"layer {layer}", **options)
    ax.set_xlabel("experts, most used first")
    ax.set_ylabel("share of uses")
    ax.set_ylim(0, 1)
    return ax
