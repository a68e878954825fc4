"""/v1/messages as the official Anthropic client sees it."""

import json
import unittest

import anthropic
from forced_model import MESSAGES, QUESTION, ForcedModelTest
from harness import PATIENCE_S, MoesaicServer

TOOLS = [
    {
        "name": name,
        "description": "Tells it.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
    for name in ("weather", "time")
]
STORY = [{"role": "user", "content": "Tell me a story."}]


def connect(server, **more):
    return anthropic.Anthropic(
        base_url=server.url, max_retries=0, timeout=PATIENCE_S, **({"api_key": "none"} | more)
    )


class TextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer()
        cls.client = connect(cls.server)

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def create(self, **more):
        options = {"model": "sample", "max_tokens": 24, "messages": STORY, "extra_body": {"temperature": 0}}
        return self.client.messages.create(**options | more)

    def chat(self, messages, **more):
        """The same by the OpenAI route."""
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, **more}
        return json.loads(self.server.call("/v1/chat/completions", body)[2])

    def test_a_message(self):
        message = self.create()
        self.assertEqual(message.type, "message")
        self.assertEqual(message.role, "assistant")
        self.assertEqual(message.model, "sample")
        self.assertTrue(message.id.startswith("msg_"))
        (block,) = message.content
        wanted = self.chat(STORY)
        self.assertEqual(block.text, wanted["choices"][0]["message"]["content"])
        self.assertIn(message.stop_reason, ("end_turn", "max_tokens"))
        usage = message.usage
        self.assertEqual(
            usage.input_tokens + usage.cache_read_input_tokens, wanted["usage"]["prompt_tokens"]
        )
        self.assertEqual(usage.output_tokens, wanted["usage"]["completion_tokens"])

    def test_a_stream(self):
        whole = self.create()
        with self.client.messages.stream(
            model="sample", max_tokens=24, messages=STORY, extra_body={"temperature": 0}
        ) as stream:
            text = "".join(stream.text_stream)
            message = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(message.content[0].text, text)
        self.assertEqual(message.stop_reason, whole.stop_reason)
        self.assertEqual(message.usage.output_tokens, whole.usage.output_tokens)

    def test_events(self):
        types = [event.type for event in self.create(stream=True, max_tokens=300)]
        deltas = types.count("content_block_delta")
        self.assertGreater(deltas, 1)
        self.assertEqual(
            types,
            ["message_start", "content_block_start", *["content_block_delta"] * deltas,
             "content_block_stop", "message_delta", "message_stop"],
        )  # fmt: skip

    def test_the_beta_route(self):
        message = self.client.beta.messages.create(
            model="sample", max_tokens=24, messages=STORY, betas=["context-management-2025-06-27"],
            extra_body={"temperature": 0},
        )  # fmt: skip
        self.assertEqual(message.content[0].text, self.create().content[0].text)

    def test_system_text_and_turns(self):
        messages = [*STORY, {"role": "assistant", "content": [{"type": "text", "text": "No."}]}, *STORY]
        message = self.create(
            system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            messages=messages,
        )
        turns = [{"role": "system", "content": "Be brief."}, STORY[0],
                 {"role": "assistant", "content": "No."}, STORY[0]]  # fmt: skip
        self.assertEqual(message.content[0].text, self.chat(turns)["choices"][0]["message"]["content"])

    def test_the_billing_header_does_not_hurt_the_cache(self):
        """What Claude Code sends: the first block of the system text changes with each request."""
        system = "You are a careful assistant who answers every question in one short sentence. " * 4

        def ask(checksum):
            return self.create(
                system=[
                    {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={checksum};"},
                    {"type": "text", "text": system},
                ]
            )

        first, second = ask("aaaaa"), ask("bbbbb")
        self.assertEqual(first.content[0].text, second.content[0].text)
        self.assertGreater(second.usage.cache_read_input_tokens, 16)
        self.assertEqual(
            first.usage.input_tokens + first.usage.cache_read_input_tokens,
            second.usage.input_tokens + second.usage.cache_read_input_tokens,
        )

    def test_count_tokens(self):
        options = {"model": "sample", "messages": STORY, "system": "Be brief."}
        usage = self.create(**options).usage
        count = self.client.messages.count_tokens(**options).input_tokens
        self.assertEqual(count, usage.input_tokens + usage.cache_read_input_tokens)
        longer = self.client.messages.count_tokens(**options | {"system": "Be very brief indeed."})
        self.assertGreater(longer.input_tokens, count)

    def test_a_stop_sequence(self):
        text = self.create().content[0].text
        stop = text[8:13]
        message = self.create(stop_sequences=[stop, "never seen"])
        self.assertEqual(message.content[0].text, text[: text.index(stop)])
        self.assertEqual((message.stop_reason, message.stop_sequence), ("stop_sequence", stop))

    def test_more_tokens_than_the_context_has(self):
        """Agents ask for what their usual model may have."""
        for stream in (False, True):
            message = self.create(max_tokens=32000, extra_body={"temperature": 0, "ignore_eos": False}, stream=stream)
            if stream:
                message = list(message)[-2].delta
            self.assertIn(message.stop_reason, ("end_turn", "model_context_window_exceeded"))

    def test_an_answer_that_goes_on(self):
        begun = [*STORY, {"role": "assistant", "content": "Once upon"}]
        wanted = self.chat(begun, continue_final_message=True, add_generation_prompt=False)
        self.assertEqual(
            self.create(messages=begun).content[0].text, wanted["choices"][0]["message"]["content"]
        )

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError) as caught:
            self.create(model="claude")
        self.assertEqual(caught.exception.body["error"]["type"], "not_found_error")
        self.assertTrue(caught.exception.request_id)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.create(messages=[{"role": "user", "content": [{"type": "image", "source": {}}]}])
        self.assertEqual(caught.exception.body["type"], "error")
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("messages[0].content[0].type", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.BadRequestError):
            self.create(messages=[{"role": "user", "content": "hello " * 3000}])
        with self.assertRaises(anthropic.BadRequestError):  # streams fail before they begin
            self.create(messages=[], stream=True)
        status, _, body = self.server.call("/v1/messages/nothing")
        self.assertEqual((status, json.loads(body)["error"]["type"]), (404, "not_found_error"))

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["sample"])
        self.assertEqual(self.client.models.retrieve("sample").display_name, "sample")

    def test_keys(self):
        with MoesaicServer("--api-key", "secret") as server:
            with self.assertRaises(anthropic.AuthenticationError):
                connect(server).messages.count_tokens(model="sample", messages=STORY)
            # The client sends its key as Bearer; older ones, and other programs, as x-api-key.
            for more in (
                {"api_key": "secret"},
                {"auth_token": "secret", "api_key": None},
                {"default_headers": {"x-api-key": "secret", "Authorization": anthropic.omit}},
            ):
                client = connect(server, **more)
                self.assertTrue(client.messages.count_tokens(model="sample", messages=STORY).input_tokens)


class ToolsTest(ForcedModelTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = connect(cls.server)

    @staticmethod
    def options(**more):
        return {"model": "sample", "max_tokens": 100, "messages": MESSAGES, "tools": TOOLS} | more

    def check(self, message):
        thinking, text, weather, time = message.content
        self.assertEqual((thinking.type, thinking.thinking), ("thinking", "I must look."))
        self.assertTrue(thinking.signature)
        self.assertEqual((text.type, text.text), ("text", "One moment."))
        self.assertEqual((weather.type, weather.name), ("tool_use", "weather"))
        self.assertEqual(weather.input, {"city": "Rome {"})
        self.assertEqual((time.name, time.input), ("time", {}))
        self.assertNotEqual(weather.id, time.id)
        self.assertEqual(message.stop_reason, "tool_use")

    def test_a_whole_answer(self):
        self.check(self.client.messages.create(**self.options()))

    def test_a_stream(self):
        """Put together by the client's own code."""
        with self.client.messages.stream(**self.options()) as stream:
            events = list(stream)
            message = stream.get_final_message()
        self.check(message)
        partial = "".join(event.partial_json for event in events if event.type == "input_json")
        self.assertIn("Rome {", partial)

    def test_one_call_at_a_time(self):
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        message = self.client.messages.create(**self.options(tool_choice=choice))
        self.assertEqual([b.name for b in message.content if b.type == "tool_use"], ["weather"])
        self.assertEqual(message.stop_reason, "tool_use")

    def test_without_tools_calls_are_text(self):
        message = self.client.messages.create(**self.options(tool_choice={"type": "none"}))
        self.assertEqual([block.type for block in message.content], ["thinking", "text"])
        self.assertEqual(message.stop_reason, "end_turn")

    def test_thinking_left_out(self):
        thinking = {"type": "adaptive", "display": "omitted"}
        message = self.client.messages.create(**self.options(thinking=thinking))
        self.assertEqual([block.type for block in message.content], ["text", "tool_use", "tool_use"])

    def test_a_conversation_goes_on(self):
        first = self.client.messages.create(**self.options())
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "12"}]}
            for block in first.content
            if block.type == "tool_use"
        ]
        messages = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
        ]
        usage = self.client.messages.create(**self.options(messages=messages, max_tokens=1)).usage
        self.assertGreater(
            usage.input_tokens + usage.cache_read_input_tokens, len(self.forced.prompt_ids) + 10
        )

    def test_cut_off(self):
        message = self.client.messages.create(**self.options(max_tokens=9))
        self.assertEqual(message.stop_reason, "max_tokens")
        self.assertEqual(message.content[-1].type, "tool_use")


if __name__ == "__main__":
    unittest.main()
