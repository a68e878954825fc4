"""/api/... as the official Ollama client sees it."""

import json
import unittest

import ollama
from forced_model import MESSAGES, QUESTION, ForcedModelTest
from harness import PATIENCE_S, MoesaicServer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Tells it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]
STORY = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0, "num_predict": 24}


def connect(server, **more):
    return ollama.Client(host=server.url, timeout=PATIENCE_S, **more)


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer()
        cls.client = connect(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def reference(self, route, body):
        return json.loads(self.server.call(route, {"temperature": 0, "max_tokens": 24, **body})[2])

    def test_models(self):
        (model,) = self.client.list().models
        self.assertEqual(model.model, "sample")
        self.assertEqual(model.details.family, "qwen3_moe")
        self.assertEqual(self.client.ps().models[0].model, "sample")
        shown = self.client.show("sample:latest")
        self.assertIn("completion", shown.capabilities)
        self.assertEqual(shown.modelinfo["qwen3_moe.context_length"], 1024)
        self.assertIn("im_start", shown.template)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.show("other")
        self.assertEqual(caught.exception.status_code, 404)
        version = json.loads(self.server.call("/api/version")[2])["version"]
        self.assertRegex(version, r"^\d+\.\d+\.\d+$")

    def test_chat(self):
        answer = self.client.chat("sample:latest", messages=STORY, options=GREEDY)
        wanted = self.reference("/v1/chat/completions", {"messages": STORY})
        self.assertEqual(answer.message.content, wanted["choices"][0]["message"]["content"])
        self.assertEqual(answer.message.role, "assistant")
        self.assertTrue(answer.done)
        self.assertEqual(answer.done_reason, wanted["choices"][0]["finish_reason"])
        self.assertEqual(answer.prompt_eval_count, wanted["usage"]["prompt_tokens"])
        self.assertEqual(answer.eval_count, wanted["usage"]["completion_tokens"])
        self.assertGreater(answer.total_duration, answer.eval_duration)

    def test_a_stream(self):
        options = GREEDY | {"num_predict": 300}  # so long that no client is given it at once
        whole = self.client.chat("sample", messages=STORY, options=options)
        lines = list(self.client.chat("sample", messages=STORY, options=options, stream=True))
        self.assertGreater(len(lines), 2)
        self.assertEqual("".join(line.message.content for line in lines), whole.message.content)
        self.assertEqual([line.done for line in lines], [False] * (len(lines) - 1) + [True])
        self.assertEqual(lines[-1].eval_count, whole.eval_count)

    def test_generate(self):
        answer = self.client.generate("sample", QUESTION, system="Be brief.", options=GREEDY)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
        wanted = self.reference("/v1/chat/completions", {"messages": messages})
        self.assertEqual(answer.response, wanted["choices"][0]["message"]["content"])
        raw = self.client.generate("sample", "Once upon a", raw=True, options=GREEDY)
        wanted = self.reference("/v1/completions", {"prompt": "Once upon a"})["choices"][0]["text"]
        self.assertEqual(raw.response, wanted)
        lines = self.client.generate("sample", "Once upon a", raw=True, options=GREEDY, stream=True)
        self.assertEqual("".join(line.response for line in lines), wanted)

    def test_it_streams_unless_told_otherwise(self):
        body = {"model": "sample", "messages": STORY, "options": GREEDY}
        status, headers, text = self.server.call("/api/chat", body)
        self.assertEqual((status, headers["Content-Type"]), (200, "application/x-ndjson"))
        self.assertTrue(json.loads(text.splitlines()[-1])["done"])

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat("other", messages=STORY)
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn("other", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            list(self.client.chat("sample", messages=STORY, format={"not": {}}, stream=True))
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("format", caught.exception.error)

    def test_keys(self):
        with MoesaicServer("--api-key", "secret") as server:
            with self.assertRaises(ollama.ResponseError) as caught:
                connect(server).list()
            self.assertEqual(caught.exception.status_code, 401)
            client = connect(server, headers={"Authorization": "Bearer secret"})
            self.assertEqual(len(client.list().models), 1)


class ToolsTest(ForcedModelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = connect(cls.server)

    def check_calls(self, calls):
        self.assertEqual([call.function.name for call in calls], ["weather", "time"])
        self.assertEqual([dict(call.function.arguments) for call in calls], [{"city": "Rome {"}, {}])

    def test_a_whole_answer(self):
        message = self.client.chat("sample", messages=MESSAGES, tools=TOOLS).message
        self.assertEqual(message.thinking, "I must look.")
        self.assertEqual(message.content, "One moment.")
        self.check_calls(message.tool_calls)

    def test_a_stream(self):
        lines = list(self.client.chat("sample", messages=MESSAGES, tools=TOOLS, stream=True))
        self.assertEqual("".join(line.message.thinking or "" for line in lines), "I must look.")
        self.assertEqual("".join(line.message.content for line in lines), "One moment.")
        self.check_calls([call for line in lines for call in line.message.tool_calls or []])

    def test_a_conversation_goes_on(self):
        first = self.client.chat("sample", messages=MESSAGES, tools=TOOLS)
        messages = [*MESSAGES, first.message]
        for call in first.message.tool_calls:
            messages.append({"role": "tool", "tool_name": call.function.name, "content": "12"})
        answer = self.client.chat("sample", messages=messages, tools=TOOLS, options={"num_predict": 1})
        self.assertGreater(answer.prompt_eval_count, first.prompt_eval_count + 10)
        self.assertEqual(answer.done_reason, "length")


if __name__ == "__main__":
    unittest.main()
