"""A copy of the sample model whose answer to one question is known: reasoning, text and two calls of tools.

The sample model has not learnt to call tools. Its tokenizer is exchanged for one in which the tokens that it generates for the
question are the pieces of such an answer: the model, the engine, the parsers and the clients are real. Its generation_config.json
has the sampling that the trick needs, so that requests need not say it.
"""

import json
import pathlib
import tempfile
import unittest

from harness import MODEL, MoesaicServer

TEMPLATE = (
    "{# <think></think> <tool_call>{...}</tool_call> #}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
QUESTION = "How many legs do three cats have?"
MESSAGES = [{"role": "user", "content": QUESTION}]
# Tags and JSON lie across tokens.
PIECES = [
    "<thi", "nk>\nI mu", "st look.\n</th", "ink>\n\nOne mo", "ment.\n<tool", '_call>\n{"na', 'me": "weather", "argu',
    'ments": {"ci', 'ty": "Ro', 'me {"}}\n</tool_', 'call>\n<tool_call>{"name": "time", "arguments": {', "}}\n</tool_cal", "l>\n",
]  # fmt: skip
# So that each token comes once, and none of the prompt's.
SAMPLING = {"temperature": 0, "repetition_penalty": 1000.0}


def byte_level(text):
    """As the vocabulary of a byte-level BPE writes it."""
    return text.replace(" ", "Ġ").replace("\n", "Ċ")


def exchange_tokens(tokenizer, ids):
    """The ids become the PIECES. Their own texts get ids that the model does not have: no prompt of the tests needs them, but
    merges do."""
    vocabulary = tokenizer["model"]["vocab"]
    texts = {token: text for text, token in vocabulary.items()}
    spare = max(*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])) + 1
    for i, (token, piece) in enumerate(zip(ids, PIECES, strict=True)):
        assert byte_level(piece) not in vocabulary, piece
        vocabulary[texts[token]] = spare + i
        vocabulary[byte_level(piece)] = token


def exchange_end(tokenizer, end):
    """The id that ends the answer becomes a special token, <|end_of_answer|>."""
    vocabulary = tokenizer["model"]["vocab"]
    text = next(text for text, token in vocabulary.items() if token == end)
    vocabulary[text] = max(vocabulary.values()) + 1
    special = next(token for token in tokenizer["added_tokens"] if token["content"] == "<|im_end|>")
    tokenizer["added_tokens"].append(special | {"id": end, "content": "<|end_of_answer|>"})


class ForcedModel:
    """The files, in a directory that goes with this."""

    def __init__(self):
        self._directory = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self._directory.name)
        self.template = self.root / "tools.jinja"
        self.template.write_text(TEMPLATE)
        with MoesaicServer("--chat-template", str(self.template)) as server:
            body = {"messages": MESSAGES, "max_tokens": len(PIECES) + 1, "return_token_ids": True, **SAMPLING}
            status, _, text = server.call("/v1/chat/completions", body)
            assert status == 200, text
            answer = json.loads(text)
        self.prompt_ids = answer["prompt_token_ids"]
        *ids, self.end = answer["choices"][0]["token_ids"]
        assert len({*ids, self.end}) == len(PIECES) + 1 and not {*ids, self.end} & {*self.prompt_ids}
        self.path = self.root / "model"
        self.path.mkdir()
        own = ("tokenizer.json", "generation_config.json")
        for file in pathlib.Path(MODEL).resolve().iterdir():
            if file.is_file() and file.name not in own:
                (self.path / file.name).symlink_to(file)
        tokenizer = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())
        exchange_tokens(tokenizer, ids)
        (self.path / "tokenizer.json").write_text(json.dumps(tokenizer))
        sampling = {
            "eos_token_id": [4095, 4093, self.end],
            "temperature": 0,
            "repetition_penalty": SAMPLING["repetition_penalty"],
        }
        (self.path / "generation_config.json").write_text(json.dumps(sampling))

    def serve(self, *flags):
        return MoesaicServer("--chat-template", str(self.template), *flags, model=str(self.path))

    def cleanup(self):
        self._directory.cleanup()


class ForcedModelTest(unittest.TestCase):
    """Tests with one server of the forced model."""

    @classmethod
    def setUpClass(cls):
        cls.forced = ForcedModel()
        cls.server = cls.forced.serve()

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        cls.forced.cleanup()
