"""Which replica answers a request soonest: the one that has its beginning in its prefix cache, and its experts in memory.

Nothing here knows of Ray. Not thread-safe: a router has its own, and uses it on one event loop.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
import zlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# As much text as a block of the prefix cache has (16 tokens), more or less: a shorter match saves nothing.
BLOCK_BYTES = 64
# What is looked at of a prompt: prefixes of half a megabyte, and the words of its last part, which is what is asked.
_MOST_BLOCKS = 8192
_MOST_TEXT = 8192
# Words are told apart by a hash of so many values.
_WORDS = 2048
# A script without spaces has a word for each sign.
_WORD = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af]|\w+")


@dataclass(frozen=True)
class Prompt:
    """What is known of a prompt before it is tokenised.

    Attributes:
        blocks: A hash of each of its beginnings that is a whole number of blocks long.
        words: Hashes of its words, in their order.
    """

    blocks: tuple[int, ...]
    words: tuple[int, ...]


def prompt_of(body: Mapping[str, Any]) -> Prompt:
    """That of a request, in any of the server's dialects: what the next turn of a conversation begins with stands first,
    as in the models' templates."""
    parts = [str(body.get("model", ""))]
    for name in ("tools", "system", "instructions"):
        if body.get(name):
            parts.append(_text(body[name]))
    said: list[str] = []
    for name in ("messages", "input", "prompt"):
        value = body.get(name)
        if value is None:
            continue
        said += [_text(one) for one in value] if isinstance(value, list) and not _are_numbers(value) else [_text(value)]
    text = "\x00".join(parts + said).encode(errors="replace")
    return Prompt(tuple(_blocks(text)), tuple(_word_hashes(" ".join(said)[-_MOST_TEXT:])))


def _are_numbers(value: Sequence[Any]) -> bool:
    return bool(value) and isinstance(value[0], int)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and _are_numbers(value):  # token ids
        return " ".join(map(str, value))
    if isinstance(value, Mapping) and isinstance(value.get("content"), str) and set(value) <= {"role", "content"}:
        return f"{value.get('role')}: {value['content']}"
    return json.dumps(value, ensure_ascii=False)


def _blocks(text: bytes) -> Iterable[int]:
    state = hashlib.blake2b(digest_size=8)
    for end in range(BLOCK_BYTES, min(len(text), _MOST_BLOCKS * BLOCK_BYTES) + 1, BLOCK_BYTES):
        state.update(text[end - BLOCK_BYTES : end])
        yield int.from_bytes(state.digest(), "little")


def _word_hashes(text: str) -> Iterable[int]:
    for word in _WORD.findall(text.lower()):
        yield zlib.crc32(word.encode(errors="replace")) % _WORDS


class PrefixIndex:
    """The beginnings of prompts that one replica was given; the oldest are forgotten.

    It stands for the replica's prefix cache, which it cannot see: what the cache has lost in the meantime is computed
    again, on a replica that was as good as any other.
    """

    def __init__(self, most_blocks: int = 1 << 16) -> None:
        self._most = most_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def match(self, blocks: Sequence[int]) -> int:
        """How many of the blocks it has, from the first one on."""
        for count, block in enumerate(blocks):
            if block not in self._blocks:
                return count
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """Ends are forgotten before beginnings."""
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._most:
            self._blocks.popitem(last=False)


class ExpertForecast:
    """Foretells which experts a request will use, from earlier requests with similar words.

    MoE-Infinity's observation is that requests of one kind use the same experts; an engine finds the kind by the experts of
    the first layers (its collection of EAMs), which nobody has before the request runs. Words are there before. Similarity is
    the cosine of counts of words, rarer words weighing more (tf-idf); the forecast is the mean of the nearest requests' EAMs,
    weighed by it, and the mean of all where no request is similar.
    """

    def __init__(self, capacity: int = 512, nearest: int = 8) -> None:
        self._capacity = capacity
        self._nearest = nearest
        self._count = 0
        self._words: npt.NDArray[np.float32] | None = None  # [capacity, _WORDS]: 1 + log of the count, or 0
        self._uses: npt.NDArray[np.float32] | None = None  # [capacity, layers * experts]: shares of the request's uses

    def __len__(self) -> int:
        return min(self._count, self._capacity)

    def learn(self, words: Sequence[int], uses: npt.NDArray[np.generic]) -> None:
        """Of a request that has ended: its words, and the tokens that each expert had [layers * experts]. The oldest leaves."""
        import numpy as np

        total = float(uses.sum())
        if total == 0:
            return
        if self._uses is None or self._words is None or self._uses.shape[1] != uses.size:
            self._count = 0
            self._words = np.zeros((self._capacity, _WORDS), np.float32)
            self._uses = np.zeros((self._capacity, uses.size), np.float32)
        row = self._count % self._capacity
        self._words[row] = _vector(words)
        self._uses[row] = np.asarray(uses, np.float32).reshape(-1) / total
        self._count += 1

    def of(self, words: Sequence[int]) -> npt.NDArray[np.float32] | None:
        """The share of its uses that each expert will have [layers * experts]; None before anything was learned."""
        import numpy as np

        count = len(self)
        if self._words is None or self._uses is None or count == 0:
            return None
        known, uses = self._words[:count], self._uses[:count]
        rarity = np.log((1 + count) / (1 + (known > 0).sum(axis=0))).astype(np.float32)
        asked = _vector(words) * rarity
        weighed = known * rarity
        lengths = np.linalg.norm(weighed, axis=1) * np.linalg.norm(asked)
        similarity = np.divide(weighed @ asked, lengths, out=np.zeros(count, np.float32), where=lengths > 0)
        nearest = np.argsort(-similarity, kind="stable")[: self._nearest]
        weights = similarity[nearest]
        if weights.sum() <= 1e-6:
            weights, nearest = np.ones(count, np.float32), np.arange(count)
        mean: npt.NDArray[np.float32] = (weights @ uses[nearest]) / weights.sum()
        return mean


def _vector(words: Sequence[int]) -> npt.NDArray[np.float32]:
    import numpy as np

    vector = np.zeros(_WORDS, np.float32)
    counts = Counter(words)
    if counts:
        vector[list(counts)] = 1 + np.log(np.fromiter(counts.values(), np.float32, len(counts)))
    return vector


@dataclass
class ReplicaView:
    """What a router knows of a replica."""

    prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    held: npt.NDArray[np.bool_] | None = None  # [layers * experts]: in memory when it was asked last
    running: int = 0  # requests that it was asked to take, or took, and that have not ended (`Sent`)


class Sent:
    """Counts what one router has sent, in `ReplicaView.running`.

    A request counts from when a replica is asked to take it: its answer comes after the next request, and what comes at the
    same time would all go to the same replica. One that nobody took, because its client left, is forgotten after a while.
    """

    _PATIENCE_S = 5.0

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._asked: dict[str, tuple[ReplicaView, float]] = {}  # by request, those asked for longest first
        self._taken: dict[tuple[Any, str], ReplicaView] = {}  # by replica and request

    def withdraw(self, request: str) -> None:
        """Nobody is asked any more."""
        asked = self._asked.pop(request, None)
        if asked is not None:
            asked[0].running -= 1

    def ask(self, request: str, view: ReplicaView) -> None:
        """The replica is asked first."""
        self.withdraw(request)
        now = self._now()
        while self._asked:
            oldest, (_, since) = next(iter(self._asked.items()))
            if now - since <= self._PATIENCE_S:
                break
            self.withdraw(oldest)
        self._asked[request] = view, now
        view.running += 1

    def take(self, request: str, replica: Any, view: ReplicaView) -> None:
        """A replica took it; it may be another than the one that was asked first."""
        self.withdraw(request)
        self._taken[replica, request] = view
        view.running += 1

    def end(self, request: str, replica: Any) -> None:
        """However it ended; also of requests that the replica did not take."""
        view = self._taken.pop((replica, request), None)
        if view is not None:
            view.running -= 1


@dataclass(frozen=True)
class Weights:
    """How replicas are compared: by the share of the prompt that their prefix cache has, and the share of the predicted
    uses of experts that are in their memory; one that has `slack` more requests than another gives way."""

    prefix: float = 1.0
    experts: float = 1.0
    slack: int = 2


class Router:
    """Puts replicas in the order in which they are to be asked."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._turn = 0
        self.forecast = ExpertForecast()

    def order(self, views: Sequence[ReplicaView], prompt: Prompt | None) -> list[int]:
        """Indices of the replicas, the best one first."""
        self._turn += 1
        fewest = min((view.running for view in views), default=0)
        scores = self._scores(views, prompt)

        def key(index: int) -> tuple[bool, float, int, int]:
            running = views[index].running
            overloaded = running >= fewest + max(1, self._weights.slack)
            return overloaded, -scores[index], running, (index + self._turn) % len(views)

        return sorted(range(len(views)), key=key)

    def _scores(self, views: Sequence[ReplicaView], prompt: Prompt | None) -> list[float]:
        scores = [0.0] * len(views)
        if prompt is None:
            return scores
        if self._weights.prefix and prompt.blocks:
            for index, view in enumerate(views):
                scores[index] += self._weights.prefix * view.prefixes.match(prompt.blocks) / len(prompt.blocks)
        # Compared where all are known: a replica that has just come would else never be asked, or always.
        if self._weights.experts and all(view.held is not None for view in views):
            expected = self.forecast.of(prompt.words)
            for index, view in enumerate(views):
                if expected is not None and view.held is not None and view.held.size == expected.size:
                    scores[index] += self._weights.experts * float(expected[view.held].sum())
        return scores


# What replicas tell routers: texts, as Ray compares them as such.


def pack_bits(flags: npt.NDArray[np.bool_]) -> str:
    """A text that `unpack_bits` reads."""
    import numpy as np

    return base64.b64encode(np.packbits(flags.reshape(-1)).tobytes()).decode()


def unpack_bits(text: str, count: int) -> npt.NDArray[np.bool_]:
    """`count` flags."""
    import numpy as np

    return np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8), count=count).astype(np.bool_)


def pack_uses(uses: npt.NDArray[np.generic]) -> str:
    """Counts as bytes: one that is larger than 255 divides all, as in the engine's collection."""
    import numpy as np

    largest = float(uses.max(initial=0))
    scaled = np.asarray(uses, np.float64) * min(1.0, 255 / max(1.0, largest))
    return base64.b64encode(zlib.compress(np.rint(scaled).astype(np.uint8).tobytes(), 1)).decode()


def unpack_uses(text: str) -> npt.NDArray[np.uint8]:
    """Counts [layers * experts]."""
    import numpy as np

    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
