"""Structured output, as the official OpenAI client sees it, and of many random schemas whether every answer that ended by
itself is of its schema, which PyPI's jsonschema decides. MOESAIC_SCHEMAS=N takes that many (docs/testing.md has the figure)."""

import json
import os
import random
import pathlib
import re
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import random_schemas
from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S, MoesaicServer

SCHEMAS = int(os.environ.get("MOESAIC_SCHEMAS", "60"))
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 3, "maximum": 120},
        "mood": {"enum": ["glad", "sad"]},
    },
    "required": ["name", "age", "mood"],
}


def response_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


class StructuredOutputTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = MoesaicServer()
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="none", max_retries=0)
        try:
            cls.chat(response_format={"type": "json_object"}, max_tokens=1)
        except openai.BadRequestError as error:
            cls.server.kill()
            assert "MOESAIC_GRAMMAR" in error.message, error
            raise unittest.SkipTest("this build has no structured output (MOESAIC_GRAMMAR)") from error

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.kill()

    @classmethod
    def chat(cls, **request):
        request = {"model": "sample", "messages": MESSAGES, "max_tokens": 400, "seed": 5} | request
        return cls.client.chat.completions.create(**request)

    def refused(self, **request):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(**request)
        return caught.exception.body

    def test_schema_is_kept_plain_and_streamed(self):
        plain = self.chat(response_format=response_format(PERSON)).choices[0]
        self.assertEqual(plain.finish_reason, "stop")
        jsonschema.validate(json.loads(plain.message.content), PERSON)
        chunks = self.chat(response_format=response_format(PERSON), stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, plain.message.content)

    def test_every_choice_is_held_and_batches_change_nothing(self):
        choices = self.chat(response_format=response_format(PERSON), n=4).choices
        for i, choice in enumerate(choices):
            alone = self.chat(response_format=response_format(PERSON), seed=5 + i).choices[0]
            self.assertEqual(choice.message.content, alone.message.content)
            if choice.finish_reason == "stop":
                jsonschema.validate(json.loads(choice.message.content), PERSON)

    def test_json_object(self):
        answer = self.chat(response_format={"type": "json_object"}, temperature=0).choices[0]
        if answer.finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.message.content), dict)
        self.assertTrue(answer.message.content.startswith("{"))

    def test_other_kinds_of_grammar(self):
        kinds = [
            ({"structured_outputs": {"regex": "[0-9]{3}-[a-c]{2}"}}, "[0-9]{3}-[a-c]{2}"),
            ({"guided_regex": "x{3}y?"}, "x{3}y?"),
            ({"structured_outputs": {"choice": ["yes", 'no "never"']}}, 'yes|no "never"'),
            ({"guided_choice": ["red", "green"]}, "red|green"),
            ({"structured_outputs": {"grammar": 'root ::= "a" | root "b"\n'}}, "ab*"),
            ({"grammar": 'root ::= ("cat" | "dog") " "? [0-9]{2,4}'}, "(cat|dog) ?[0-9]{2,4}"),
            ({"json_schema": {"type": "integer", "minimum": 7, "maximum": 8}}, "7|8"),
            ({"structured_outputs": {"json": json.dumps({"enum": [1, "b"]})}}, '1|"b"'),
            (
                {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {
                    "type": "tag", "begin": "<q>", "content": {"type": "json_schema", "json_schema": {"type": "boolean"}},
                    "end": "</q>"}}}},
                r"<q>\s*(true|false)\s*</q>",
            ),
        ]  # fmt: skip
        for extra, pattern in kinds:
            with self.subTest(extra):
                answer = self.chat(extra_body=extra, max_tokens=60).choices[0]
                if answer.finish_reason == "stop":
                    self.assertIsNotNone(re.fullmatch(pattern, answer.message.content), answer.message.content)
                completion = self.client.completions.create(model="sample", prompt="So", max_tokens=60, extra_body=extra)
                if completion.choices[0].finish_reason == "stop":
                    self.assertIsNotNone(re.fullmatch(pattern, completion.choices[0].text), completion.choices[0].text)

    def test_what_could_not_be_kept_is_refused(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
        error = self.refused(response_format=response_format(schema))
        self.assertEqual(error["param"], "response_format.json_schema.schema")
        self.assertIn("/properties/a/uniqueItems", error["message"])
        for extra in (
            {"structured_outputs": {"regex": "(?=a)b"}},
            {"structured_outputs": {"regex": "((a{1000}){1000}){1000}"}},
            {"structured_outputs": {"grammar": "root ::= nobody"}},
            {"guided_choice": []},
            {"guided_json": {"$ref": "#"}},
            {"guided_json": {}, "guided_regex": "a"},
        ):
            with self.subTest(extra):
                self.assertEqual(self.refused(extra_body=extra)["type"], "invalid_request_error")

    def test_the_end_of_a_grammar_ends_the_answer(self):
        # Whatever else the request says of ends: nothing can come behind it.
        answer = self.chat(extra_body={"guided_choice": ["ab"], "min_tokens": 50}, max_tokens=60).choices[0]
        self.assertEqual((answer.message.content, answer.finish_reason), ("ab", "stop"))
        answer = self.chat(extra_body={"guided_choice": ["ab"], "ignore_eos": True}, max_tokens=60).choices[0]
        self.assertEqual((answer.message.content, answer.finish_reason), ("ab", "stop"))

    def test_forced_calls_are_held_to_their_schemas(self):
        tools = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in (("person", PERSON), ("roll", {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}))
        ]  # fmt: skip
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        choices = ("required", *({"type": "function", "function": {"name": name}} for name in schemas))

        def ask(client, choice, seed):
            return choice, client.chat.completions.create(
                model="sample", messages=MESSAGES, tools=tools, tool_choice=choice, seed=seed, max_tokens=400
            ).choices[0]

        for parser in ("hermes", "qwen3_coder", "glm45", "minimax_m2", "deepseek_v32", "granite"):
            flags = ("--tool-call-parser", parser)
            with self.subTest(parser), MoesaicServer(*flags) as server, ThreadPoolExecutor(8) as pool:
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
                ended = 0
                for choice, answer in pool.map(lambda task: ask(client, *task), [(c, s) for c in choices for s in range(4)]):
                    if answer.finish_reason == "length":
                        continue
                    self.assertEqual(answer.finish_reason, "tool_calls")
                    (call,) = answer.message.tool_calls
                    if choice != "required":
                        self.assertEqual(call.function.name, choice["function"]["name"])
                    jsonschema.validate(json.loads(call.function.arguments), schemas[call.function.name])
                    ended += 1
                self.assertGreater(ended, 0)
                client.close()
        with MoesaicServer("--tool-call-parser", "hermes") as server:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
            tools[0]["function"]["parameters"] = {"not": {}}
            with self.assertRaises(openai.BadRequestError) as caught:
                client.chat.completions.create(model="sample", messages=MESSAGES, tools=tools, tool_choice="required")
            self.assertEqual(caught.exception.param, "tools[0].function.parameters")
            client.close()

    def test_arguments_of_random_schemas_are_of_them(self):
        """In syntaxes of tags values are bare text: what the parser reads has to be of the schema all the same."""
        parsers = ("qwen3_coder", "glm45", "minimax_m2", "deepseek_v32")
        for start, parser in enumerate(parsers):
            with MoesaicServer("--tool-call-parser", parser) as server, ThreadPoolExecutor(8) as pool:
                client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)

                def ask(number, client=client):
                    schema = random_schemas.whole_schema(random.Random(number))
                    if number % 3 == 0:  # the values are JSON
                        definitions = schema.pop("$defs", {})
                        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"], "$defs": definitions}
                    else:  # what tags cannot have at the top is left out
                        schema = {name: value for name, value in schema.items() if not name.endswith("Properties")}
                        schema["properties"] = {name.replace('"', ""): value for name, value in schema["properties"].items()}
                        schema["required"] = [name.replace('"', "") for name in schema["required"]]
                    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
                    try:
                        return number, schema, client.chat.completions.create(
                            model="sample", messages=MESSAGES, tools=tools, tool_choice="required", seed=number, max_tokens=400
                        ).choices[0]
                    except openai.BadRequestError as error:
                        # Of what tags cannot have, and nothing else.
                        assert "where a model writes parameters in tags" in error.message, error.message
                        return number, schema, None

                ended = 0
                for number, schema, answer in pool.map(ask, range(start, SCHEMAS, len(parsers))):
                    if answer is None or answer.finish_reason == "length":
                        continue
                    ended += 1
                    with self.subTest(number):
                        text = answer.message.tool_calls[0].function.arguments
                        try:
                            jsonschema.validate(json.loads(text), schema, cls=jsonschema.Draft202012Validator)
                        except jsonschema.ValidationError as error:
                            self.fail(f"{error.message}\n{json.dumps(schema)}\n{text}")
                print(f"{parser}: {ended} of {len(range(start, SCHEMAS, len(parsers)))} calls ended by themselves")
                client.close()

    def test_batch_lines_are_held_too(self):
        with tempfile.TemporaryDirectory() as directory:
            lines, answers = pathlib.Path(directory) / "in.jsonl", pathlib.Path(directory) / "out.jsonl"
            body = {"messages": MESSAGES, "max_tokens": 400, "seed": 5, "response_format": response_format(PERSON)}
            bad = body | {"response_format": response_format({"not": {}})}
            lines.write_text("".join(
                json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}) + "\n"
                for name, body in (("good", body), ("bad", bad))
            ))  # fmt: skip
            subprocess.run(
                [BINARY, "batch", MODEL, "-i", str(lines), "-o", str(answers)],
                env=ENVIRONMENT, timeout=PATIENCE_S, capture_output=True,
            )  # fmt: skip
            found = {line["custom_id"]: line["response"] for line in map(json.loads, answers.read_text().splitlines())}
        served = self.chat(response_format=response_format(PERSON)).choices[0].message.content
        self.assertEqual(found["good"]["body"]["choices"][0]["message"]["content"], served)

    def test_responses(self):
        text = {"format": {"type": "json_schema", "name": "answer", "schema": PERSON}}
        answer = self.client.responses.create(model="sample", input="Hi", text=text, max_output_tokens=400)
        if answer.status == "completed":
            jsonschema.validate(json.loads(answer.output_text), PERSON)

    def test_answers_to_random_schemas_are_of_them(self):
        def ask(number):
            draw = random.Random(number)
            schema = random_schemas.whole_schema(draw)
            answer = self.chat(response_format=response_format(schema), seed=number, temperature=draw.choice([0.7, 1.0]))
            return number, schema, answer.choices[0]

        ended = 0
        with ThreadPoolExecutor(8) as pool:
            for number, schema, answer in pool.map(ask, range(SCHEMAS)):
                if answer.finish_reason != "stop":
                    continue
                ended += 1
                with self.subTest(number):
                    value = json.loads(answer.message.content)
                    try:
                        jsonschema.validate(value, schema, cls=jsonschema.Draft202012Validator)
                    except jsonschema.ValidationError as error:
                        self.fail(f"{error.message}\n{json.dumps(schema)}\n{answer.message.content}")
        print(f"{ended} of {SCHEMAS} answers ended by themselves")
        self.assertGreater(ended, SCHEMAS // 3)


if __name__ == "__main__":
    unittest.main()
