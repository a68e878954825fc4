"""moesaic.ray.serve: replicas of the server on two nodes of a Ray cluster on loopback, one of which is killed, that become
more and fewer; and how requests are routed, which needs no cluster."""

import contextlib
import http.client
import json
import os
import signal
import socket
import tempfile
import threading
import time
import unittest

import moesaic
import numpy as np
import openai
from harness import MODEL, PATIENCE_S, REFERENCE, with_long_context
from moesaic.ray import _affinity
from moesaic.ray._affinity import BLOCK_BYTES, ExpertForecast, PrefixIndex, Prompt, ReplicaView, Router, Weights, prompt_of

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_raylet_start_wait_time_s", "60")  # a busy machine
import ray  # noqa: E402
from ray import serve  # noqa: E402
from test_ray import two_nodes, wait_until  # noqa: E402

SETTINGS = {"expert_memory": "25%", "memory": "600MiB", "max_num_seqs": 4, "served_model_name": "sample", "log_level": "warn"}
LONG_TOKENS = 60000  # more than a fast machine answers before a test has seen what it waits for


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.model = with_long_context(directory.name)
        cluster, _ = two_nodes()
        cls.addClassCleanup(cluster.shutdown)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        cls.addClassCleanup(ray.shutdown)
        cls.port = free_port()
        serve.start(
            proxy_location="HeadOnly",
            http_options={"host": "127.0.0.1", "port": cls.port},
            logging_config={"log_level": "ERROR"},
        )
        cls.addClassCleanup(serve.shutdown)
        cls.deploy(replicas=2)

    @classmethod
    def deploy(cls, **arguments):
        """Returns when the application is as it was asked for."""
        from moesaic.ray.serve import application

        settings = {**SETTINGS, "max_model_len": 1 << 16}
        made = application(cls.model, learn_every_s=0.25, drain_s=60, slack=2, **arguments, **settings)
        serve.run(made, name="moesaic", route_prefix="/")
        cls.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{cls.port}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S
        )

    @classmethod
    def call(cls, path, body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", cls.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            return response.status, response.read().decode()

    @classmethod
    def replicas(cls):
        status, body = cls.call("/v1/moesaic/replicas")
        return json.loads(body)["replicas"] if status == 200 else []

    def wait_for_replicas(self, count):
        wait_until(lambda: len(self.replicas()) == count, f"{count} replicas")

    def wait_until_idle(self):
        wait_until(lambda: not any(one["running"] + one["waiting"] for one in self.replicas()), "the end of requests")

    def stream(self, prompt, tokens, parts, errors, stop=None):
        """Reads an answer, until `stop` is set; its error goes to `errors`."""
        try:
            with self.client.completions.create(
                model="sample", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
            ) as chunks:
                for chunk in chunks:
                    parts.append(chunk.choices[0].text)
                    if stop is not None and stop.is_set():
                        break
        except openai.APIError as error:
            errors.append(error)

    def test_answers_are_those_of_one_server(self):
        self.wait_for_replicas(2)
        prompts = [entry["prompt"] for entry in REFERENCE[:4]]
        with moesaic.LLM(self.model, max_num_seqs=4) as llm:
            params = moesaic.SamplingParams(temperature=0, max_tokens=12)
            expected = [output.outputs[0].text for output in llm.generate(prompts, params)]
        for prompt, text in zip(prompts, expected):
            parts = []
            for chunk in self.client.completions.create(model="sample", prompt=prompt, max_tokens=12, temperature=0, stream=True):
                parts.append(chunk.choices[0].text)
            self.assertGreater(len(parts), 1)
            self.assertEqual("".join(parts), text)
            whole = self.client.completions.create(model="sample", prompt=prompt, max_tokens=12, temperature=0)
            self.assertEqual(whole.choices[0].text, text)
        self.assertEqual([model.id for model in self.client.models.list()], ["sample"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="sample", prompt="x", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(self.call("/v1/files")[0], 404)
        self.assertEqual(self.call("/v1/models", Host="evil.example")[0], 403)
        self.assertEqual(self.call("/health"), (200, ""))

    def test_routers_learn_which_experts_are_used(self):
        self.wait_for_replicas(2)
        for entry in REFERENCE[:3]:
            self.client.completions.create(model="sample", prompt=entry["prompt"], max_tokens=8)
        self.wait_until_idle()
        found = self.replicas()
        held = [one["experts_held"] for one in found]
        self.assertTrue(all(0 < count < 256 for count in held), held)
        used = sum(one["counters"]['moe_expert_requests_total{result="hit"}'] for one in found)
        self.assertGreater(used, 0)
        wait_until(lambda: any(one["learned"] for one in self.replicas()), "learning")

    def test_a_client_that_leaves_ends_its_request(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        body = {"prompt": "Once", "max_tokens": LONG_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read(40)
        wait_until(lambda: any(one["running"] for one in self.replicas()), "the request")
        response.close()
        connection.close()
        self.wait_until_idle()

    def test_a_replica_that_is_killed_in_the_middle(self):
        self.wait_for_replicas(2)
        self.wait_until_idle()
        runs, stop = [([], []) for _ in range(4)], threading.Event()
        threads = [
            threading.Thread(target=self.stream, args=(f"{number}. It was", LONG_TOKENS, *runs[number], stop))
            for number in range(4)
        ]
        self.addCleanup(stop.set)
        for thread in threads:
            thread.start()
        wait_until(lambda: all(len(parts) > 10 for parts, _ in runs), "tokens")
        before = []

        def all_run():
            before[:] = self.replicas()
            return sum(one["running"] for one in before) == 4

        wait_until(all_run, "four requests")
        running = [one["running"] for one in before]
        self.assertTrue(all(running), running)  # `slack` is two
        # Of one replica the actor's process, whose server ends with it.
        os.kill(before[0]["pid"], signal.SIGKILL)
        wait_until(lambda: sum(bool(errors) for _, errors in runs) == running[0], "errors")
        kept = [(parts, len(parts)) for parts, errors in runs if not errors]
        wait_until(lambda: all(len(parts) > count + 10 for parts, count in kept), "more tokens of the others")
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        self.assertFalse(any(thread.is_alive() for thread in threads))
        lost = [(parts, errors) for parts, errors in runs if errors]
        self.assertEqual([len(lost), len(kept)], running)
        for parts, errors in lost:
            self.assertIn("The answer was lost", str(errors[0]))
            self.assertLess(len(parts), LONG_TOKENS)
        # Who comes now is answered, by whom there is.
        self.client.completions.create(model="sample", prompt="It was", max_tokens=4)
        wait_until(lambda: not os.path.exists(f"/proc/{before[0]['server_pid']}"), "the end of the server")
        self.wait_for_replicas(2)  # Serve begins another one

    def test_a_server_that_ends_takes_its_replica_with_it(self):
        self.wait_for_replicas(2)
        victim = self.replicas()[0]
        os.kill(victim["server_pid"], signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{victim['pid']}"), "the end of the replica")
        self.client.completions.create(model="sample", prompt="It was", max_tokens=4)
        self.wait_for_replicas(2)

    def test_from_one_to_two_to_one_under_load(self):
        self.deploy(
            autoscaling={
                "min_replicas": 1, "initial_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2, "metrics_interval_s": 0.2,
                "look_back_period_s": 1, "upscale_delay_s": 0.2, "downscale_delay_s": 1,
            }
        )
        self.addCleanup(self.deploy, replicas=2)
        self.wait_for_replicas(1)
        stop, most, answers, failures = threading.Event(), [6], [], []

        def ask(number):
            while not stop.is_set():
                if number >= most[0]:
                    time.sleep(0.02)  # one of those that pause
                    continue
                parts, errors = [], []
                self.stream(f"{number}. It was", 150, parts, errors)
                answers.append(len(parts))
                failures.extend(errors)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        try:
            self.wait_for_replicas(2)
            wait_until(lambda: all(one["running"] for one in self.replicas()), "work for both")
            most[0] = 1
            self.wait_for_replicas(1)
            ended = len(answers)
            wait_until(lambda: len(answers) > ended, "an answer of who is left")
        finally:
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        self.assertEqual(failures, [])
        self.assertTrue(all(answers), answers)


class RoutingTest(unittest.TestCase):
    """What needs no cluster."""

    def test_a_conversation_begins_with_what_was_said_before(self):
        first = [{"role": "system", "content": "Be brief. " * 20}, {"role": "user", "content": "How are you? " * 20}]
        more = [*first, {"role": "assistant", "content": "Well."}, {"role": "user", "content": "Why?"}]
        one, two = (prompt_of({"model": "m", "messages": messages}) for messages in (first, more))
        self.assertEqual(two.blocks[: len(one.blocks)], one.blocks)
        self.assertGreater(len(one.blocks), 5)
        other = prompt_of({"model": "m", "messages": first, "tools": [{"type": "function", "function": {"name": "f"}}]})
        self.assertNotEqual(other.blocks[0], one.blocks[0])
        for body in (
            {"prompt": "A text"}, {"prompt": [1, 2, 3]}, {"prompt": [[1, 2], [3]]}, {"prompt": ["a", "b"]},
            {"system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": [{"type": "text", "text": "T"}]}]},
            {"input": "text", "instructions": "more"}, {"messages": None}, {}, {"prompt": "\udce9"},
        ):
            self.assertEqual(prompt_of(body), prompt_of(json.loads(json.dumps(body))))
        self.assertEqual(prompt_of({"messages": [{"role": "user", "content": "鉄道と鉄"}]}).words[-4:], prompt_of({"prompt": "鉄道と鉄"}).words)

    def test_prefixes_are_forgotten_from_their_ends(self):
        index = PrefixIndex(most_blocks=6)
        index.add([1, 2, 3, 4])
        self.assertEqual((index.match([1, 2, 9, 4]), index.match([1, 2, 3, 4, 5]), index.match([9, 1])), (2, 4, 0))
        index.add([11, 12, 13, 14])
        self.assertEqual((index.match([11, 12, 13, 14]), index.match([1, 2, 3, 4])), (4, 2))

    def test_similar_words_foretell_experts(self):
        rng = np.random.default_rng(3)
        forecast = ExpertForecast(capacity=40)
        self.assertIsNone(forecast.of((1, 2)))
        code, prose = (np.arange(64) < 16) * 10, (np.arange(64) >= 48) * 10
        for _ in range(60):  # more than there is room for
            common = tuple(rng.integers(1000, 1010, 8))
            forecast.learn(common + tuple(rng.integers(0, 30, 12)), code + rng.integers(0, 2, 64))
            forecast.learn(common + tuple(rng.integers(100, 130, 12)), prose + rng.integers(0, 2, 64))
        self.assertEqual(len(forecast), 40)
        for words, wanted in ((range(0, 12), code), (range(100, 112), prose)):
            shares = forecast.of((*words, 1003, 1004))
            self.assertAlmostEqual(float(shares.sum()), 1, places=5)
            self.assertGreater(shares[wanted > 0].sum(), 0.8)
        nothing_like_it = forecast.of((500, 501))
        self.assertTrue(0.3 < nothing_like_it[code > 0].sum() < 0.6)

    def test_who_is_asked_first(self):
        blocks = tuple(range(10))
        views = [ReplicaView(held=np.arange(8) < 4), ReplicaView(held=np.arange(8) >= 4), ReplicaView(held=np.zeros(8, bool))]
        router = Router(Weights(slack=3))
        first = [router.order(views, Prompt((), ()))[0] for _ in range(6)]
        self.assertEqual(sorted(first), [0, 0, 1, 1, 2, 2])  # in turn
        router.forecast.learn((1, 2), np.arange(8) // 4)
        for number in range(3):
            self.assertEqual(router.order(views, Prompt((), (1, 2)))[0], 1, number)
        views[2].prefixes.add(blocks)  # the whole of it is worth as much as all experts
        views[1].held = np.arange(8) >= 5
        self.assertEqual(router.order(views, Prompt(blocks, (1, 2))), [2, 1, 0])
        without = Router(Weights(prefix=0))
        self.assertEqual(sorted(without.order(views, Prompt(blocks, (1, 2)))[0] for _ in range(3)), [0, 1, 2])
        views[2].running = 3
        self.assertEqual(router.order(views, Prompt(blocks, (1, 2))), [1, 0, 2])
        views[0].running = views[1].running = 1
        self.assertEqual(router.order(views, Prompt(blocks, (1, 2)))[0], 2)
        views[0].held = None  # who has just come is compared by prefixes alone
        self.assertEqual(router.order(views, Prompt((), (1, 2)))[-1], 2)  # it has the most requests
        self.assertEqual(Router(Weights()).order([], None), [])

    def test_requests_that_come_at_once_are_shared(self):
        now = 0.0
        router, sent = Router(Weights()), _affinity.Sent(lambda: now)
        views = [ReplicaView(), ReplicaView()]
        for view in views:
            view.prefixes.add((1, 2))

        def ask(number):
            sent.withdraw(str(number))
            best = router.order(views, Prompt((1, 2), ()))[0]
            sent.ask(str(number), views[best])
            return best

        asked = [ask(number) for number in range(4)]  # nobody has answered yet
        self.assertEqual(sorted(asked), [0, 0, 1, 1])
        self.assertEqual([ask(0), views[0].running + views[1].running], [asked[0], 4])  # asked again
        other = 1 - asked[0]
        sent.take("0", other, views[other])  # the first of the order was full
        self.assertEqual(views[other].running, 3)
        sent.end("0", other)
        sent.end("never taken", other)
        self.assertEqual([view.running for view in views], [1, 2] if other else [2, 1])
        now = 6.0  # clients have left before an answer
        sent.ask("4", views[0])
        self.assertEqual([view.running for view in views], [1, 0])

    def test_requests_go_where_their_kind_went(self):
        """Two replicas that keep the experts of their last requests, and two kinds of requests that come in a random order."""
        rng = np.random.default_rng(5)
        kinds = [((1, 2, 3), (np.arange(64) < 20) * 4), ((7, 8, 9), (np.arange(64) >= 44) * 4)]

        def hits(router):
            views = [ReplicaView(held=rng.random(64) < 0.3) for _ in range(2)]
            recent = [np.zeros(64), np.zeros(64)]
            found = 0.0
            for turn in range(200):
                words, uses = kinds[rng.integers(2)]
                best = router.order(views, Prompt((), words))[0] if router else turn % 2
                found += uses[views[best].held].sum() / uses.sum()
                recent[best] = 0.5 * recent[best] + uses + rng.random(64)
                views[best].held = recent[best] >= np.sort(recent[best])[-20]
                if router:
                    router.forecast.learn(words, uses)
            return found / 200

        self.assertGreater(hits(Router(Weights())), hits(None) + 0.2)

    def test_what_replicas_tell(self):
        rng = np.random.default_rng(1)
        flags = rng.random(77) < 0.4
        np.testing.assert_array_equal(_affinity.unpack_bits(_affinity.pack_bits(flags), 77), flags)
        counts = rng.integers(0, 256, 100)
        np.testing.assert_array_equal(_affinity.unpack_uses(_affinity.pack_uses(counts)), counts)
        large = _affinity.unpack_uses(_affinity.pack_uses(counts * 1000))
        self.assertLess(np.abs(large / large.sum() - counts / counts.sum()).max(), 1e-3)
        self.assertEqual(_affinity.unpack_uses(_affinity.pack_uses(np.zeros(5, int))).tolist(), [0] * 5)

    def test_what_is_refused(self):
        from moesaic.ray.serve import application, run

        for arguments, text in (
            ({"policy": "best"}, "affinity, round-robin"),
            ({"replicas": 1, "autoscaling": {}}, "both given"),
            ({"port": 80}, "port: "),
            ({"expert_memry": "25%"}, "expert-memory"),
        ):
            with self.subTest(arguments), self.assertRaisesRegex(moesaic.InvalidArgumentError, text):
                application(MODEL, **arguments)
        for words, text in (
            (["--host", "0.0.0.0"], "no keys"),
            (["--expert-memory", "25%", "word"], "'word' is neither"),
            (["--min-replicas", "1", "--replicas", "2"], "both given"),
        ):
            with self.subTest(words), self.assertRaisesRegex(moesaic.InvalidArgumentError, text):
                run([MODEL, *words])


if __name__ == "__main__":
    unittest.main()
