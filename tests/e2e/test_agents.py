"""Scripted sessions of an agent with the official clients of three APIs: a question, thinking, calls in parallel, their results, what
the model says to them, and at last an answer that is held to a schema. And a thousand of them at once.

The forced model says the same to the question whoever asks (forced_model.py), so all clients must get the same of it. What it says
to the results is nobody's script: only its beginning is asked for.
"""

import asyncio
import json
import pathlib
import resource
import unittest

import anthropic
import jsonschema
import openai
from forced_model import MESSAGES, QUESTION, ForcedModel
from harness import PATIENCE_S, MoesaicServer
from test_tools import ForcedModelWithCalls

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
RESULTS = {"weather": "Sunny, 24 degrees.", "time": "Noon."}
REPORT = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "sunny": {"type": "boolean"}, "degrees": {"enum": [24, 25]}},
    "required": ["city", "sunny", "degrees"],
    "additionalProperties": False,
}
REPORT_TOKENS = 200  # more than it can have
STREAMS = 1000


def run(name, arguments):
    """The agent's tools."""
    assert name != "weather" or arguments == {"city": "Rome {"}, arguments
    assert name != "time" or arguments == {}, arguments
    return RESULTS[name]


class ChatAgent:
    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        self.messages = list(MESSAGES)
        self.tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in RESULTS]

    def turn(self, max_tokens, streamed):
        request = {"model": "sample", "messages": self.messages, "tools": self.tools, "max_tokens": max_tokens}
        if streamed:
            with self.client.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
                answer = stream.get_final_completion()
        else:
            answer = self.client.chat.completions.create(**request)
        message = answer.choices[0].message
        calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
        if answer.choices[0].finish_reason == "tool_calls":
            # As many clients send it back: the arguments written anew.
            again = message.model_dump(exclude_none=True, include={"role", "content", "reasoning", "tool_calls"})
            for call in again["tool_calls"]:
                call.pop("parsed_arguments", None)
                call["function"].pop("parsed_arguments", None)
                call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
            self.messages.append(again)
            for call, (name, arguments) in zip(message.tool_calls, calls, strict=True):
                self.messages.append({"role": "tool", "tool_call_id": call.id, "content": run(name, arguments)})
        usage = answer.usage
        return {
            "thought": getattr(message, "reasoning", ""), "said": message.content, "calls": calls, "output": usage.completion_tokens,
            "input": usage.prompt_tokens, "cached": usage.prompt_tokens_details.cached_tokens,
        }


    def report(self):
        answer = self.client.chat.completions.create(
            model="sample", messages=self.messages, max_tokens=REPORT_TOKENS,
            response_format={"type": "json_schema", "json_schema": {"name": "report", "schema": REPORT}})
        return answer.choices[0].finish_reason == "stop", answer.choices[0].message.content


class MessagesAgent:
    def __init__(self, url):
        self.client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        self.messages = [{"role": "user", "content": QUESTION}]
        self.tools = [{"name": name, "input_schema": PARAMETERS} for name in RESULTS]

    def turn(self, max_tokens, streamed):
        request = {"model": "sample", "messages": self.messages, "tools": self.tools, "max_tokens": max_tokens}
        if streamed:
            with self.client.messages.stream(**request) as stream:
                message = stream.get_final_message()
        else:
            message = self.client.messages.create(**request)
        by_type = {kind: [b for b in message.content if b.type == kind] for kind in ("thinking", "text", "tool_use")}
        calls = [(block.name, block.input) for block in by_type["tool_use"]]
        if message.stop_reason == "tool_use":
            self.messages.append({"role": "assistant", "content": message.content})
            self.messages.append({"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": block.id, "content": run(block.name, block.input)}
                for block in by_type["tool_use"]]})
        usage = message.usage
        return {
            "thought": "".join(b.thinking for b in by_type["thinking"]), "said": "".join(b.text for b in by_type["text"]),
            "calls": calls, "output": usage.output_tokens, "input": usage.input_tokens + usage.cache_read_input_tokens,
            "cached": usage.cache_read_input_tokens,
        }


    def report(self):
        message = self.client.messages.create(
            model="sample", messages=self.messages, max_tokens=REPORT_TOKENS,
            extra_body={"output_config": {"format": {"type": "json_schema", "schema": REPORT}}})
        return message.stop_reason == "end_turn", "".join(b.text for b in message.content if b.type == "text")


class ResponsesAgent:
    def __init__(self, url):
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)
        self.items = list(MESSAGES)
        self.tools = [{"type": "function", "name": name, "parameters": PARAMETERS, "strict": False} for name in RESULTS]

    def turn(self, max_tokens, streamed):
        request = {"model": "sample", "input": self.items, "tools": self.tools, "max_output_tokens": max_tokens}
        if streamed:
            with self.client.responses.stream(**request) as stream:
                response = stream.get_final_response()
        else:
            response = self.client.responses.create(**request)
        calls = [item for item in response.output if item.type == "function_call"]
        said = [(item.name, json.loads(item.arguments)) for item in calls if item.status == "completed"]
        if response.status == "completed":
            self.items += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            self.items += [{"type": "function_call_output", "call_id": item.call_id, "output": run(*call)}
                           for item, call in zip(calls, said, strict=True)]
        usage = response.usage
        return {
            "thought": "".join(p.text for item in response.output if item.type == "reasoning" for p in item.content),
            "said": response.output_text, "calls": said, "output": usage.output_tokens, "input": usage.input_tokens,
            "cached": usage.input_tokens_details.cached_tokens,
        }


    def report(self):
        response = self.client.responses.create(
            model="sample", input=self.items, max_output_tokens=REPORT_TOKENS,
            text={"format": {"type": "json_schema", "name": "report", "schema": REPORT}})
        return response.status == "completed", response.output_text


class AgentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.forced = ForcedModel()

    @classmethod
    def tearDownClass(cls):
        cls.forced.cleanup()

    def test_a_session(self):
        """Each agent in a server of its own, so that what is cached and replayed is its own conversation."""
        sessions = []
        for kind in (ChatAgent, MessagesAgent, ResponsesAgent):
            with self.subTest(kind.__name__), ForcedModelWithCalls(self.forced) as server:
                agent = kind(server.url)
                first = agent.turn(100, streamed=True)
                self.assertEqual(first["thought"], "I must look.")
                self.assertEqual(first["said"], "One moment.")
                self.assertEqual(first["calls"], [("weather", {"city": "Rome {"}), ("time", {})])
                second = agent.turn(8, streamed=False)
                # The prompt is the first one's, the answer in the tokens that the model wrote it with, and the results: all
                # whole blocks of 16 tokens of the first two come out of the cache.
                beginning = first["input"] + first["output"]
                self.assertGreater(second["input"], beginning + 10)
                self.assertGreaterEqual(second["cached"], (beginning - 1) // 16 * 16)
                sessions.append((agent, server.url))
        # The forced model has lost the tokens of some letters: the sample model itself goes on with the conversations.
        with MoesaicServer("--chat-template", str(self.forced.root / "calls.jinja")) as server:
            for agent, url in sessions:
                with self.subTest(type(agent).__name__):
                    path = str(agent.client.base_url).removeprefix(url)
                    agent.client = agent.client.with_options(base_url=server.url + path)
                    ended, report = agent.report()
                    self.assertTrue(ended, report)
                    jsonschema.validate(json.loads(report), REPORT)

    def test_requests_of_coding_agents(self):
        """As they write them (tests/data/agent_*.json), but for the model's name and how long the answer may be."""
        data = pathlib.Path(__file__).parent.parent / "data"
        requests = [request for name in ("agent_recordings.json", "agent_requests.json")
                    for request in json.loads((data / name).read_text())]
        with MoesaicServer("--chat-template", str(self.forced.template), "--served-model-name", "m") as server:
            for request in requests:
                body, route = request["body"], request["route"]
                if route == "/api/chat":
                    body["options"]["num_predict"] = 4
                elif route == "/v1/responses":
                    body["max_output_tokens"] = 4
                else:
                    body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] = 4
                with self.subTest(request["agent"]):
                    status, _, text = server.call(route, body)
                    self.assertEqual(status, 200, text)
                    if "count_tokens" in route:
                        self.assertGreater(json.loads(text)["input_tokens"], 0)
                        continue
                    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{"))]
                    if route == "/v1/chat/completions" and body.get("stream"):
                        self.assertEqual(data.pop(), "[DONE]")
                    events = [json.loads(event) for event in data]
                    if route == "/v1/chat/completions":
                        finishes = [choice["finish_reason"] for event in events for choice in event["choices"]]
                        self.assertIn(finishes[-1], ("length", "stop"))
                        self.assertEqual(bool(events[-1].get("usage")), "stream_options" in body or not body.get("stream"))
                    elif route == "/v1/responses":
                        self.assertIn(events[-1]["type"], ("response.completed", "response.incomplete"))
                    elif route == "/api/chat":
                        self.assertTrue(events[-1]["done"])
                    else:
                        self.assertEqual(events[-1]["type"], "message_stop")

    def test_a_thousand_streams(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        body = json.dumps({
            "messages": MESSAGES, "max_tokens": 100, "stream": True, "stop_token_ids": [self.forced.end],
            "tools": [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in RESULTS],
        })
        request = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        ).encode()
        flags = ("--max-num-seqs", "256", "--max-queue", str(STREAMS))
        with self.forced.serve(*flags) as server:

            async def one():
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(request)
                answer = await reader.read()
                writer.close()
                return answer

            async def all_of_them():
                return await asyncio.gather(*(one() for _ in range(STREAMS)))

            answers = asyncio.run(asyncio.wait_for(all_of_them(), 4 * PATIENCE_S))
            for answer in answers:
                self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer[:300])
                self.assertEqual(answer.count(b"data: [DONE]"), 1)
                deltas = [json.loads(line[6:])["choices"][0] for line in answer.split(b"\n")
                          if line.startswith(b"data: {")]
                calls = {}
                for delta in deltas:
                    for call in delta["delta"].get("tool_calls", []):
                        function = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                        for key, value in call["function"].items():
                            function[key] += value
                self.assertEqual([(c["name"], json.loads(c["arguments"])) for c in calls.values()],
                                 [("weather", {"city": "Rome {"}), ("time", {})])
                self.assertEqual(deltas[-1]["finish_reason"], "tool_calls")
            self.assertEqual(
                server.metrics()['moe_request_success_total{model_name="sample",finished_reason="stop"}'], STREAMS)
            server.wait_idle()
            server.wait_for_metric("moe_http_connections", lambda v: v <= 1)


if __name__ == "__main__":
    unittest.main()
