"""Routing traces and collections of EAMs, as numpy arrays on the engine's own memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Iterable, Mapping

from . import _core
from ._core import RoutingTrace, TraceSequence
from ._engine import EngineBase

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


def read_trace(path: str | os.PathLike[str]) -> RoutingTrace:
    """Reads a recorded trace, of JSON lines (plain or gzip) or binary.

    Its ``sequences`` have ``experts`` (uint16 [tokens, layers, top_k], layers with experts only),
    ``weights`` (float32 likewise, or None), ``token_ids`` (int32 [tokens], or None) and ``eam``
    (uint32 [layers of the model, experts]), read-only and without a copy of what was read.
    """
    return _core.read_trace(path)


def write_trace(
    path: str | os.PathLike[str],
    trace: RoutingTrace | Iterable[Mapping[str, Any]],
    *,
    num_experts: int | None = None,
    model: str = "",
    phase: str = "mixed",
    first_layer: int = 0,
    weight_scale: float = 16384,
) -> None:
    """Writes a trace: of JSON lines when the name ends in .jsonl or .jsonl.gz, else binary.

    Args:
        trace: What read_trace gave, or sequences as dicts: ``experts`` ([tokens, layers, top_k]), and
            where they are known ``id``, ``domain``, ``weights`` ([tokens, layers, top_k]),
            ``token_ids`` ([tokens]) and ``prefill_tokens``. ``CompletionOutput.routed_experts``
            is such an array, where all layers have experts and no token came from the prefix cache.
        num_experts: Of a layer; needed for sequences.
        phase: "prefill", "decode", or "mixed": the first ``prefill_tokens`` are the prompt's.
        first_layer: Number of the first layer with experts in the model.
        weight_scale: Weights are kept in steps of 1 / this.
    """
    if isinstance(trace, RoutingTrace):
        _core.write_trace(path, trace)
        return
    import numpy as np

    sequences = list(trace)
    if num_experts is None or not sequences:
        raise ValueError("write_trace needs num_experts and at least one sequence")
    arrays = [np.asarray(sequence["experts"]) for sequence in sequences]
    if arrays[0].ndim != 3:
        raise ValueError(f"experts has {arrays[0].ndim} dimensions, expected [tokens, layers, top_k]")
    _, layers, top_k = arrays[0].shape
    weighted = sequences[0].get("weights") is not None
    made = RoutingTrace(model, phase, first_layer, layers, num_experts, top_k, weight_scale if weighted else 0.0)
    for sequence, experts in zip(sequences, arrays):
        if experts.size and (experts.min() < 0 or experts.max() >= num_experts):
            raise ValueError(f"experts of sequence {sequence.get('id', '')!r} are not within 0 and {num_experts - 1}")
        weights, token_ids = sequence.get("weights"), sequence.get("token_ids")
        made.append(
            str(sequence.get("id", "")),
            str(sequence.get("domain", "")),
            np.ascontiguousarray(experts, np.uint16),
            None if weights is None else np.ascontiguousarray(weights, np.float32),
            None if token_ids is None else np.ascontiguousarray(token_ids, np.int32),
            int(sequence.get("prefill_tokens", 0)),
        )
    _core.write_trace(path, made)


class EamCollection:
    """Request EAMs that are kept so that a running request can be compared with them: what the
    predictor ``eamc`` goes by.

    Args:
        num_layers: Layers of the model, those without experts counted.
        num_experts: Of a layer.
        capacity: Matrices that it keeps. Beyond, a new one replaces the one most like it.
    """

    def __init__(self, num_layers: int, num_experts: int, capacity: int) -> None:
        self._core = _core.EamArchive(num_layers, num_experts, capacity)

    @classmethod
    def _of(cls, core: _core.EamArchive) -> EamCollection:
        collection = cls.__new__(cls)
        collection._core = core
        return collection

    @classmethod
    def load(cls, path: str | os.PathLike[str], capacity: int = 0) -> EamCollection:
        """Of a file of learned state: a server's ``--state-file``, what ``save`` or ``moesaic trace
        compact`` wrote. Capacity 0: as many as there are."""
        return cls._of(_core.EamArchive.load(path, capacity))

    @classmethod
    def compact(cls, trace: RoutingTrace, capacity: int, iterations: int = 20, seed: int = 1) -> EamCollection:
        """At most ``capacity`` matrices that stand for the requests of a trace, by k-means. Raises
        UnsupportedError for more requests than that where the build has no FAISS."""
        return cls._of(_core.EamArchive.compact(trace, capacity, iterations, seed))

    @classmethod
    def of_engine(cls, llm: EngineBase) -> EamCollection:
        """A copy of what an engine made with ``predictor="eamc"`` has learned so far."""
        return cls._of(_core.EamArchive.of_engine(llm._core))

    def put_into(self, llm: EngineBase, merge: bool = False) -> None:
        """Replaces what the engine has learned, or adds to it. Answers do not change, only what is
        fetched ahead."""
        self._core.put_into(llm._core, merge)

    def save(self, path: str | os.PathLike[str]) -> None:
        """To a file of learned state; its other parts stay. A file of something else is set aside."""
        self._core.save(path)

    def merge(self, other: EamCollection) -> None:
        """Adds what another collection holds."""
        self._core.merge(other._core)

    def insert(self, eam: npt.ArrayLike) -> int:
        """Keeps a matrix of counts, [layers, experts]; which entry it is now, -1 for zeros."""
        return self._core.insert(_counts(eam))

    def nearest(self, eam: npt.ArrayLike) -> tuple[int, float]:
        """The entry most like a matrix [layers, experts], and the cosine of the two flattened."""
        return self._core.nearest(_counts(eam))

    def __len__(self) -> int:
        return self._core.size

    def __getitem__(self, entry: int) -> npt.NDArray[np.uint32]:
        """An entry's counts: uint32 [layers, experts]."""
        return self._core.entry(entry)

    @property
    def capacity(self) -> int:
        """Matrices that it keeps at most."""
        return self._core.capacity

    @property
    def shape(self) -> tuple[int, int]:
        """(layers, experts) of a matrix."""
        return self._core.num_layers, self._core.num_experts

    @property
    def counts(self) -> npt.NDArray[np.uint8]:
        """All entries as they are stored: uint8 [entries, layers, experts], read-only, on the
        collection's own memory, which ``insert`` and ``merge`` change. An entry that had counts above
        255 is scaled down as a whole."""
        return self._core.counts


def _counts(eam: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(eam, np.uint32)


__all__ = ["EamCollection", "RoutingTrace", "TraceSequence", "read_trace", "write_trace"]
