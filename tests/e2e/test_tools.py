"""Calls of tools and reasoning, as the official OpenAI client and `moesaic batch` see them.

The sample model has not learnt to call tools. Its tokenizer is exchanged for one in which the tokens that it generates for the
test's prompt are the pieces of an answer with reasoning and calls: the model, the engine, the parsers and the client are real,
and the answer is known.
"""

import json
import pathlib
import subprocess
import tempfile
import unittest

import openai
from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S, MoesaicServer

TEMPLATE = (
    "{# <think></think> <tool_call>{...}</tool_call> #}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}{% endfor %}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
MESSAGES = [{"role": "user", "content": "How many legs do three cats have?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
# Tags and JSON lie across tokens.
PIECES = [
    "<thi", "nk>\nI mu", "st look.\n</th", "ink>\n\nOne mo", "ment.\n<tool", '_call>\n{"na', 'me": "weather", "argu',
    'ments": {"ci', 'ty": "Ro', 'me {"}}\n</tool_', 'call>\n<tool_call>{"name": "time", "arguments": {', "}}\n</tool_cal", "l>\n",
]  # fmt: skip
# So that each token comes once, and none of the prompt's.
SAMPLING = {"temperature": 0, "repetition_penalty": 1000.0, "return_token_ids": True}


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


class ToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.directory.name)
        cls.template = root / "tools.jinja"
        cls.template.write_text(TEMPLATE)
        with MoesaicServer("--chat-template", str(cls.template)) as server:
            body = {"messages": MESSAGES, "max_tokens": len(PIECES) + 1, **SAMPLING}
            status, _, text = server.call("/v1/chat/completions", body)
            assert status == 200, text
            answer = json.loads(text)
        cls.prompt_ids = answer["prompt_token_ids"]
        *ids, cls.end = answer["choices"][0]["token_ids"]
        assert len({*ids, cls.end}) == len(PIECES) + 1 and not {*ids, cls.end} & {*cls.prompt_ids}
        cls.model = root / "model"
        cls.model.mkdir()
        for file in pathlib.Path(MODEL).resolve().iterdir():
            if file.is_file() and file.name != "tokenizer.json":
                (cls.model / file.name).symlink_to(file)
        tokenizer = json.loads((pathlib.Path(MODEL) / "tokenizer.json").read_text())
        exchange_tokens(tokenizer, ids)
        (cls.model / "tokenizer.json").write_text(json.dumps(tokenizer))
        cls.server = MoesaicServer("--chat-template", str(cls.template), model=str(cls.model))
        cls.client = openai.OpenAI(
            base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
        )

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()
        cls.directory.cleanup()

    @classmethod
    def options(cls, **more):
        extra = SAMPLING | {"stop_token_ids": [cls.end]} | more.pop("extra_body", {})
        return {
            "model": "sample",
            "messages": MESSAGES,
            "tools": TOOLS,
            "max_tokens": 100,
            "extra_body": extra,
        } | more

    def chat(self, **more):
        return self.client.chat.completions.create(**self.options(**more))

    def check_message(self, message):
        self.assertEqual(message.content, "One moment.")
        self.assertEqual(message.reasoning, "I must look.")
        self.assertEqual(message.reasoning_content, "I must look.")
        weather, time = message.tool_calls
        self.assertEqual(weather.type, "function")
        self.assertEqual(weather.function.name, "weather")
        self.assertEqual(json.loads(weather.function.arguments), {"city": "Rome {"})
        self.assertEqual(time.function.name, "time")
        self.assertEqual(time.function.arguments, "{}")
        self.assertNotEqual(weather.id, time.id)

    def test_the_prompt_is_the_recorded_one(self):
        self.assertEqual(self.chat().prompt_token_ids, self.prompt_ids)

    def test_a_whole_answer(self):
        choice = self.chat().choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.check_message(choice.message)

    def test_a_stream(self):
        """Put together by the client's own code."""
        with self.client.chat.completions.stream(**self.options()) as stream:
            arguments = "".join(
                event.arguments_delta
                for event in stream
                if event.type == "tool_calls.function.arguments.delta" and event.index == 0
            )
            choice = stream.get_final_completion().choices[0]
        self.assertEqual(json.loads(arguments), {"city": "Rome {"})
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual(choice.message.content, "One moment.")
        self.assertEqual([call.function.name for call in choice.message.tool_calls], ["weather", "time"])
        self.assertEqual(choice.message.tool_calls[1].function.arguments, "{}")

    def test_chunks(self):
        deltas = [
            chunk.choices[0].delta for chunk in self.chat(stream=True) if chunk.choices[0].delta.tool_calls
        ]
        calls = [delta.tool_calls[0] for delta in deltas]
        self.assertEqual([call.index for call in calls], sorted(call.index for call in calls))
        for index in (0, 1):
            first, *others = [call for call in calls if call.index == index]
            self.assertTrue(first.id and first.type == "function" and first.function.name)
            self.assertEqual(first.function.arguments, "")
            self.assertTrue(others)
            for call in others:
                self.assertIsNone(call.id)
                self.assertIsNone(call.function.name)

    def test_one_call_at_a_time(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                answer = self.chat(parallel_tool_calls=False, stream=stream)
                if stream:
                    chunks = list(answer)
                    names = [
                        call.function.name
                        for chunk in chunks
                        for call in chunk.choices[0].delta.tool_calls or []
                        if call.function.name
                    ]
                    reason = chunks[-1].choices[0].finish_reason
                else:
                    names = [call.function.name for call in answer.choices[0].message.tool_calls]
                    reason = answer.choices[0].finish_reason
                self.assertEqual(names, ["weather"])
                self.assertEqual(reason, "tool_calls")

    def test_cut_off(self):
        choice = self.chat(max_tokens=9).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        self.assertEqual(choice.message.tool_calls[0].function.arguments, '{"city": "Ro')

    def test_without_tools_calls_are_text(self):
        for more in ({"tools": openai.NOT_GIVEN}, {"tool_choice": "none"}):
            message = self.chat(**more).choices[0].message
            self.assertIsNone(message.tool_calls)
            self.assertEqual(message.reasoning, "I must look.")
            self.assertTrue(message.content.startswith("One moment.\n<tool_call>\n"), message.content)
        message = self.chat(extra_body={"separate_reasoning": False}).choices[0].message
        self.assertTrue(message.content.startswith("<think>\nI must look."), message.content)

    def test_a_conversation_goes_on(self):
        first = self.chat().choices[0].message
        messages = [*MESSAGES, first.model_dump(exclude_none=True)]
        for call in first.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "12"})
        answer = self.chat(messages=messages, max_tokens=1)
        self.assertGreater(answer.usage.prompt_tokens, len(self.prompt_ids))

    def test_forced_calls_are_refused(self):
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            with self.assertRaisesRegex(openai.BadRequestError, "grammar"):
                self.chat(tool_choice=choice)

    def test_parsers_by_name(self):
        flags = ("--chat-template", str(self.template), "--reasoning-parser", "none")
        with MoesaicServer(*flags, "--tool-call-parser", "kimi_k2", model=str(self.model)) as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=PATIENCE_S)
            message = client.chat.completions.create(**self.options()).choices[0].message
        self.assertIsNone(message.tool_calls)
        self.assertTrue(message.content.startswith("<think>\n"))
        command = [BINARY, "serve", MODEL, "--port", "0", "--tool-call-parser", "hermess"]
        result = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--tool-call-parser hermess", result.stderr)

    def test_batch(self):
        root = pathlib.Path(self.directory.name)
        body = self.options()
        body |= body.pop("extra_body")
        del body["model"]
        line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions", "body": body}
        (root / "in.jsonl").write_text(json.dumps(line) + "\n")
        for mode in ("throughput", "latency"):
            output = root / f"{mode}.jsonl"
            command = [BINARY, "batch", str(self.model), "-i", str(root / "in.jsonl"), "-o", str(output)]
            command += ["--mode", mode, "--chat-template", str(self.template)]
            subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT, timeout=PATIENCE_S)
            choice = json.loads(output.read_text())["response"]["body"]["choices"][0]
            self.assertEqual(choice["finish_reason"], "tool_calls", mode)
            calls = choice["message"]["tool_calls"]
            self.assertEqual([call["function"]["name"] for call in calls], ["weather", "time"])
            self.assertEqual(choice["message"]["reasoning_content"], "I must look.")


if __name__ == "__main__":
    unittest.main()
