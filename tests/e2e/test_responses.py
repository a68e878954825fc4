"""/v1/responses as the official OpenAI client sees it."""

import json
import unittest

import openai
from forced_model import MESSAGES, QUESTION, ForcedModelTest
from harness import PATIENCE_S, MoesaicServer

TOOLS = [
    {
        "type": "function",
        "name": name,
        "description": "Tells it.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
    for name in ("weather", "time")
]


def connect(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer()
        cls.client = connect(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def create(self, **more):
        options = {"model": "sample", "input": "Tell me a story.", "max_output_tokens": 24, "temperature": 0}
        return self.client.responses.create(**options | more)

    def chat(self, messages):
        answer = self.client.chat.completions.create(
            model="sample", messages=messages, max_tokens=24, temperature=0
        )
        return answer.choices[0].message.content, answer.usage

    def test_a_response(self):
        response = self.create()
        text, usage = self.chat([{"role": "user", "content": "Tell me a story."}])
        self.assertEqual(response.output_text, text)
        self.assertEqual(response.object, "response")
        self.assertIn(response.status, ("completed", "incomplete"))
        self.assertEqual(response.usage.input_tokens, usage.prompt_tokens)
        self.assertEqual(response.usage.output_tokens, usage.completion_tokens)
        self.assertEqual(response.temperature, 0)
        self.assertEqual(response.tool_choice, "auto")

    def test_a_stream(self):
        whole = self.create()
        with self.client.responses.stream(
            model="sample", input="Tell me a story.", max_output_tokens=24, temperature=0
        ) as stream:
            events = list(stream)
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        deltas = sum(e.type == "response.output_text.delta" for e in events)
        self.assertEqual(
            [event.type.removeprefix("response.") for event in events],
            ["created", "in_progress", "output_item.added", "content_part.added",
             *["output_text.delta"] * deltas, "output_text.done", "content_part.done",
             "output_item.done", whole.status],
        )  # fmt: skip
        self.assertEqual(events[-1].response.output[0].content[0].text, text)

    def test_a_conversation(self):
        items = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Tell me a story."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "No."}]},
            {"role": "user", "content": "Tell me a story."},
        ]
        text, _ = self.chat([
            {"role": "system", "content": "You write.\nBe brief."},
            {"role": "user", "content": "Tell me a story."},
            {"role": "assistant", "content": "No."},
            {"role": "user", "content": "Tell me a story."},
        ])  # fmt: skip
        self.assertEqual(self.create(input=items, instructions="You write.").output_text, text)

    def test_the_cache_is_used(self):
        items = [{"role": "user", "content": "A long question about very many things. " * 8}]
        self.create(input=items)
        again = self.create(input=items)
        self.assertGreater(again.usage.input_tokens_details.cached_tokens, 16)

    def test_what_agents_send_beside(self):
        """Tools of types that are not known, stored responses, and fields of other servers."""
        response = self.create(
            tools=[{"type": "web_search"}, {"type": "image_generation"}, {"type": "namespace", "name": "n"}],
            store=True,
            include=["reasoning.encrypted_content"],
            prompt_cache_key="k",
            extra_body={"client_metadata": {"a": "b"}, "text": {"verbosity": "low"}},
        )
        self.assertTrue(response.output_text)
        self.assertFalse(response.store)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.create(previous_response_id="resp_123")
        self.assertEqual(caught.exception.param, "previous_response_id")
        with self.assertRaises(openai.BadRequestError):
            self.create(text={"format": {"type": "yaml"}})
        with self.assertRaises(openai.NotFoundError):
            self.create(model="gpt-9", stream=True)
        status, _, body = self.server.call("/v1/responses", {"input": []})
        self.assertEqual((status, json.loads(body)["error"]["param"]), (400, "input"))


class ToolsTest(ForcedModelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = connect(cls.server)

    @staticmethod
    def options(**more):
        return {"model": "sample", "max_output_tokens": 100, "input": MESSAGES, "tools": TOOLS} | more

    def check(self, response):
        reasoning, message, weather, time = response.output
        self.assertEqual(reasoning.content[0].text, "I must look.")
        self.assertEqual(message.content[0].text, "One moment.")
        self.assertEqual((weather.type, weather.name), ("function_call", "weather"))
        self.assertEqual(json.loads(weather.arguments), {"city": "Rome {"})
        self.assertEqual((time.name, time.arguments), ("time", "{}"))
        self.assertNotEqual(weather.call_id, time.call_id)
        self.assertEqual(response.status, "completed")
        self.assertEqual(response.usage.output_tokens_details.reasoning_tokens, 2)  # of PIECES

    def test_a_whole_answer(self):
        self.check(self.client.responses.create(**self.options()))

    def test_a_stream(self):
        with self.client.responses.stream(**self.options()) as stream:
            events = list(stream)
            self.check(stream.get_final_response())
        deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
        # How many deltas there are is up to the speed of both sides.
        for whole in done:
            self.assertEqual("".join(e.delta for e in deltas if e.item_id == whole.item_id), whole.arguments)
        self.assertEqual([e.arguments for e in done][1], "{}")

    def test_the_loop_of_an_agent(self):
        first = self.client.responses.create(**self.options())
        items = [*MESSAGES, *(item.model_dump(exclude_none=True) for item in first.output)]
        for item in first.output:
            if item.type == "function_call":
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "12"})
        answer = self.client.responses.create(**self.options(input=items, max_output_tokens=1))
        self.assertGreater(answer.usage.input_tokens, first.usage.input_tokens + 10)
        self.assertEqual(answer.status, "incomplete")
        self.assertEqual(answer.incomplete_details.reason, "max_output_tokens")

    def test_the_question_alone(self):
        response = self.client.responses.create(**self.options(input=QUESTION))
        self.check(response)


if __name__ == "__main__":
    unittest.main()
