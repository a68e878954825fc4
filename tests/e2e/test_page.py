"""The page in a headless Chromium: what is drawn is read back from its canvases and data attributes."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from harness import BINARY, ENVIRONMENT, MODEL, PATIENCE_S, MoesaicServer

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
if not BROWSER or not DRIVER:
    print("SKIPPED: chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)", file=sys.stderr)
    sys.exit(77)

from selenium import webdriver  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

SHOTS = os.environ.get("MOESAIC_E2E_SHOTS")  # a directory for screenshots, to be looked at
FLAGS = ("--expert-memory", "25%")


def open_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,900",
                 "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


class Load:
    """Requests that follow each other, in the background."""

    def __init__(self, server, streams=2):
        self.server = server
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(streams)]

    def run(self, seed):
        while not self.stop.is_set():
            seed += 10
            self.server.call("/v1/completions", {"prompt": f"Chapter {seed}. It was a cold night", "seed": seed,
                                                 "max_tokens": 100, "temperature": 0.8, "ignore_eos": True})

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE_S)


class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = open_browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()

    def setUp(self):
        self.browser.get("about:blank")
        self.errors()
        self.emulate(1280, 900, "light")

    def emulate(self, width, height, theme):
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": theme}]})

    def choose(self, model):
        self.js("((name) => { const models = document.getElementById('models'); models.value = name;"
                " models.dispatchEvent(new Event('change')); })(arguments[0])", model)

    def js(self, script, *arguments):
        return self.browser.execute_script("return " + script, *arguments)

    def wait(self, script, wanted=bool, what=None):
        """Waits until wanted(value of the script); returns the value."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            value = self.js(script)
            if wanted(value):
                return value
            if time.monotonic() > deadline:
                self.fail(f"{what or script} stays {value!r}")
            time.sleep(0.05)

    def wait_state(self, *states):
        return self.wait("document.body.dataset.state", lambda state: state in states)

    def wait_sample(self):
        self.wait("document.querySelector('#map').dataset.sample", lambda n: n is not None and int(n) > 0)

    def text(self, selector):
        return self.js("document.querySelector(arguments[0]).textContent", selector)

    def colour(self, x, y, canvas="map"):
        """Of a pixel of a canvas, as [r, g, b, a]."""
        return self.js("Array.from(document.getElementById(arguments[0]).getContext('2d')"
                       ".getImageData(arguments[1], arguments[2], 1, 1).data)", canvas, x, y)

    def errors(self):
        """What scripts and the policy complain of; that a server ends is no error of the page."""
        return [entry for entry in self.browser.get_log("browser")
                if entry["level"] == "SEVERE" and entry["source"] != "network"]

    def test_one_of_several_models(self):
        with tempfile.TemporaryDirectory() as directory:
            models = pathlib.Path(directory) / "models.yaml"
            models.write_text(f"models:\n  - id: first\n    path: {MODEL}\n"
                              f"  - id: second\n    path: {MODEL}\n    dtype: int8\n")
            keys = pathlib.Path(directory) / "keys"
            keys.write_text('{"key": "sesame", "name": "ops", "admin": true}\n{"key": "look", "name": "guest"}\n')
            with MoesaicServer("--memory", "2GiB", "--api-key-file", str(keys), models=str(models), wait_ready=False,
                               key="sesame") as server:
                while server.call("/ready")[0] != 200:
                    time.sleep(0.05)
                self.browser.get(server.url + "/")
                self.wait_state("key")
                self.browser.find_element(By.ID, "key").send_keys("sesame", Keys.ENTER)
                self.wait_sample()
                options = "Array.from(document.querySelectorAll('#models option')).map((option) => option.textContent)"
                self.assertEqual(self.js(options), ["first", "second"])
                self.assertEqual(self.js("document.title"), "first \u00b7 Moesaic")
                self.choose("second")
                self.wait("document.title", lambda title: title == "second \u00b7 Moesaic")
                self.shoot("several-models", 1280, "light")
                # Taken off, and looked at all the same; the other one goes on.
                self.assertEqual(self.text("#order"), "Unload")
                self.browser.find_element(By.ID, "order").click()
                self.wait_state("lost")
                self.assertEqual(self.js(options), ["first", "second (unloaded)"])
                self.assertEqual(self.text("#order"), "Load")
                self.choose("first")
                self.wait_state("live")
                self.choose("second")
                self.wait_state("lost")
                self.browser.find_element(By.ID, "order").click()
                self.wait_state("live")
                self.assertEqual(self.js(options), ["first", "second"])
                self.assertEqual(self.text("#order-error"), "")
                # Who may only look is told so.
                self.js("sessionStorage.setItem('moesaic-api-key', 'look')")
                self.browser.refresh()
                self.wait_state("live")
                self.browser.find_element(By.ID, "order").click()
                self.wait("document.querySelector('#order-error').textContent", lambda text: "admin" in text)
                self.wait_state("live")
        self.assertEqual(self.errors(), [])

    def test_what_is_drawn_is_what_the_server_says(self):
        with MoesaicServer(*FLAGS) as server:
            self.browser.get(server.url + "/")
            self.wait_state("live")
            self.wait_sample()
            self.assertEqual(self.text("#model-name"), "sample")
            with Load(server):
                self.wait("document.querySelectorAll('#request-rows tr[data-phase=decode]').length")
                self.wait("Number(document.querySelector('#chart-found').dataset.points || 0)", lambda n: n >= 8)
                self.assertRegex(self.text("#request-rows tr"), "decode|prefill|waiting")
                found = self.wait("Array.from(document.querySelectorAll('#recall-bars [data-recall]'))"
                                  ".map((row) => Number(row.dataset.recall))",
                                  lambda values: len(values) == 4 and all(0 < v <= 1 for v in values))
                self.assertGreater(found[0], 0.3)
                self.wait("Number(document.querySelector('#lanes [data-demand]').dataset.demand)")
            server.wait_idle()
            self.wait("document.querySelectorAll('#request-rows tr[data-phase=ended]').length")
            self.wait("document.querySelector('#state').textContent", lambda text: text == "ready")
            time.sleep(0.5)  # the picture of the last sample
            snapshot = json.loads(server.call("/v1/moesaic/snapshot")[2])
            model, sample = snapshot["model"], snapshot["sample"]
            self.assertEqual(model["experts"], 32)
            self.assertEqual(self.js("Object.assign({}, document.querySelector('#map').dataset)")["layers"],
                             str(len(model["layers_with_experts"])))
            self.assertEqual(int(self.js("document.querySelector('#map').dataset.resident")), sample["experts_resident"])
            ledger = sum(item["bytes"] for item in model["memory"][0]["items"])
            self.assertEqual(self.js("Array.from(document.querySelectorAll('#ledgers [data-bytes]'))"
                                     ".reduce((sum, row) => sum + Number(row.dataset.bytes), 0)"), ledger)
            # The strip of each expert has the colour of its place, and the hover its name.
            width = self.js("document.querySelector('#map').width")
            cell = (width - 31) // 32
            places = {}
            plane = base64.b64decode(sample["places"])
            for layer in range(8):
                for expert in range(0, 32, 3):
                    colour = tuple(self.colour(30 + expert * cell + cell // 2, 16 + layer * 22 + 19))
                    places.setdefault(plane[layer * 32 + expert] == 1, set()).add(colour)
            self.assertEqual(len(places[True]), 1, places)
            self.assertTrue(places[True].isdisjoint(places[False]), places)
            self.assertGreater(len({tuple(self.colour(30 + e * cell + cell // 2, 16 + 8)) for e in range(32)}), 5)
            self.assertTrue(self.js("Array.from(document.getElementById('chart-found').getContext('2d')"
                                    ".getImageData(0, 0, 400, 100).data).some((byte) => byte)"))
            self.point_and_type()
            self.assertEqual(self.errors(), [])

    def point_and_type(self):
        canvas = self.browser.find_element(By.ID, "map")
        ActionChains(self.browser).move_to_element_with_offset(canvas, 0, 0).perform()
        self.assertRegex(self.text("#map-cell"), r"^Layer \d, expert \d+: used by \d+(\.\d)?% of the last tokens; (not )?in memory")
        layer, expert = (int(self.js(f"document.querySelector('#map').dataset.{name}")) for name in ("layer", "expert"))
        canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
        self.assertTrue(self.text("#map-cell").startswith(f"Layer {layer + 2}, expert {expert - 1}: "), self.text("#map-cell"))

    def test_widths_and_themes(self):
        with MoesaicServer(*FLAGS) as server, Load(server):
            self.browser.get(server.url + "/")
            self.wait("document.querySelectorAll('#request-rows tr[data-phase=ended]').length", lambda n: n > 2)
            papers = set()
            for theme in ("light", "dark"):
                for width in (375, 768, 1280):
                    self.emulate(width, 900, theme)
                    self.wait("document.documentElement.scrollWidth", lambda w: w == width)
                    papers.add((theme, self.js("getComputedStyle(document.body).backgroundColor")))
                    # No text stands on another one.
                    overlapping = self.js("""(() => {
                      const boxes = [];
                      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
                      while (walker.nextNode()) {
                        const element = walker.currentNode.parentElement;
                        if (!walker.currentNode.textContent.trim() || element.closest('script, style, .skip, [hidden], .scroll')) continue;
                        const range = document.createRange();
                        range.selectNodeContents(walker.currentNode);
                        for (const box of range.getClientRects()) if (box.width > 1) boxes.push([box, walker.currentNode.textContent]);
                      }
                      return boxes.flatMap(([a, x], i) => boxes.slice(i + 1).filter(([b]) =>
                        Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 &&
                        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4).map(([, y]) => [x, y]));
                    })()""")
                    self.assertEqual(overlapping, [], f"{theme} {width}")
                    self.shoot(f"{theme}-{width}", width, theme)
            self.assertEqual(len({paper for _, paper in papers}), 2)
            self.assertEqual(self.errors(), [])

    def shoot(self, name, width, theme):
        if not SHOTS:
            return
        self.emulate(width, self.js("document.documentElement.scrollHeight"), theme)
        time.sleep(0.7)
        self.browser.save_screenshot(f"{SHOTS}/{name}.png")

    def test_a_conversation(self):
        with MoesaicServer(*FLAGS) as server:
            self.browser.get(server.url + "/")
            self.wait_sample()
            field = self.browser.find_element(By.ID, "chat-text")
            for turn in (1, 2):
                field.send_keys("How much is 3 times 12?", Keys.ENTER)
                self.wait(f"document.querySelectorAll('.message.assistant').length === {turn} &&"
                          " document.querySelector('#chat').dataset.state === 'idle'")
                self.assertNotEqual(self.js("Array.from(document.querySelectorAll('.message.assistant p')).at(-1).textContent"), "")
            self.wait("Number(document.querySelector('#chat-map').dataset.used || 0)", lambda used: used > 8)
            self.assertRegex(self.text("#chat-experts"), r"^\d+ of 256 experts were used by [\d,]+ tokens of the answer\.$")
            status, _, direct = server.call("/v1/chat/completions", {
                "model": "sample", "messages": [{"role": "user", "content": "How much is 3 times 12?"}], "temperature": 0})
            self.assertEqual(status, 200, direct)
            self.assertEqual(self.errors(), [])

    def test_an_answer_is_stopped_by_its_reader(self):
        with MoesaicServer(*FLAGS, endless=True) as server:
            self.browser.get(server.url + "/")
            self.wait_sample()
            self.browser.find_element(By.ID, "chat-text").send_keys("Tell me a long story.", Keys.ENTER)
            self.wait("document.querySelector('#chat').dataset.state", lambda state: state == "answering")
            # Either it goes on until it is stopped, or the model had little to say.
            self.js("void document.querySelector('#chat-stop').click()")
            self.wait("document.querySelector('#chat').dataset.state", lambda state: state == "idle")
            server.wait_idle()

    def test_a_request_beside_the_nearest_one(self):
        with MoesaicServer(*FLAGS, "--predictor", "eamc", "--no-prefix-cache") as server:
            self.browser.get(server.url + "/")
            self.wait_sample()
            for prompt in ("Once upon a time", "1, 2, 3,", "Once upon a time"):
                server.call("/v1/completions", {"prompt": prompt, "max_tokens": 16, "temperature": 0, "ignore_eos": True})
            self.wait("document.querySelectorAll('#request-rows tr[data-phase=ended]').length", lambda n: n == 3)
            self.browser.find_element(By.CSS_SELECTOR, "#request-rows button").send_keys(Keys.ENTER)
            self.wait("!document.querySelector('#one').hidden && Number(document.querySelector('#one-map').dataset.used || 0)")
            self.assertRegex(self.text("#one-own"), r"^\d tokens of the prompt, 15 of the answer$")
            self.assertRegex(self.text("#one-nearest"), r"^entry \d of 3, similarity 1\.00$")
            self.assertEqual(self.js("document.querySelector('#one-map').dataset.used"),
                             self.js("document.querySelector('#nearest-map').dataset.used"))
            self.browser.find_element(By.ID, "one-close").click()
            self.assertTrue(self.js("document.querySelector('#one').hidden"))
            self.assertEqual(self.errors(), [])

    def test_a_recorded_trace(self):
        with tempfile.TemporaryDirectory() as directory:
            prompts = pathlib.Path(directory) / "prompts.txt"
            prompts.write_text("Once upon a time\n1, 2, 3,\nOnce upon a day\n")
            trace = pathlib.Path(directory) / "sample.trace"
            for arguments in (["record", MODEL, "--prompts", str(prompts), "--raw", "--max-tokens", "12", "-o", str(trace)],
                              ["show", str(trace), "--html"]):
                result = subprocess.run([BINARY, "trace", *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE_S)
                self.assertEqual(result.returncode, 0, result.stderr)
            self.browser.get(f"file://{trace}.html")
            self.wait_state("recorded")
            self.assertEqual(self.js("document.querySelectorAll('#request-rows tr').length"), 3)
            whole = self.text("#map-summary")
            self.browser.find_element(By.ID, "window").send_keys(Keys.ARROW_RIGHT)
            self.wait("document.querySelector('#map').dataset.window", lambda i: i == "1")
            self.assertNotEqual(self.text("#map-summary"), whole)
            self.assertRegex(self.text("#window-note"), r"^tokens 2 to 2 of \d+")
            self.browser.find_element(By.CSS_SELECTOR, "#request-rows button").click()
            self.assertRegex(self.text("#one-nearest"), r"similarity 0\.\d\d$")
            self.assertGreater(int(self.js("document.querySelector('#one-map').dataset.used")), 8)
            self.assertEqual(self.errors(), [])
            self.shoot("recorded-1280", 1280, "light")

    def test_asks_for_a_key(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("secret\n")
            keys.flush()
            with MoesaicServer("--api-key-file", keys.name, key="secret") as server:
                self.browser.get(server.url + "/")
                self.wait_state("key")
                field = self.browser.find_element(By.ID, "key")
                field.send_keys("wrong", Keys.ENTER)
                self.wait("document.querySelector('#key-error').textContent")
                field.send_keys("secret", Keys.ENTER)
                self.wait_state("live")
                self.assertFalse(field.is_displayed())
                self.assertNotIn("secret", self.browser.page_source)
                self.browser.refresh()  # it is kept for this tab
                self.wait_state("live")
            self.assertEqual(self.errors(), [])

    def test_reload_and_restart(self):
        with MoesaicServer(*FLAGS) as server:
            self.browser.get(server.url + "/")
            with Load(server):
                self.wait("Number(document.querySelector('#chart-found').dataset.points || 0)", lambda n: n >= 3)
                self.browser.refresh()
                self.wait("Number(document.querySelector('#chart-found').dataset.points || 0)", lambda n: n >= 3)
            port = server.port
        self.wait_state("lost")
        with MoesaicServer(*FLAGS, "--port", str(port)) as server:
            self.wait_state("live")
            self.wait("document.querySelectorAll('#request-rows tr').length", lambda n: n == 0)
            self.assertEqual(self.errors(), [])

    # The stream that the page reads is as fast as it takes it.
    def test_ten_thousand_events_without_growth(self):
        with MoesaicServer(*FLAGS) as server:
            for i in range(3):
                server.call("/v1/completions", {"prompt": f"Chapter {i}", "max_tokens": 8})
            script = self.browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": """
              window.allowed = 1000;
              const realFetch = fetch;
              window.fetch = (url, options) => !url.startsWith('/v1/moesaic/events') ? realFetch(url, options)
                : Promise.resolve(new Response(new ReadableStream({start: feed}).pipeThrough(new TextEncoderStream())));
              async function feed(stream) {
                const {model, sample} = await (await realFetch('/v1/moesaic/snapshot')).json();
                const send = (json) => stream.enqueue(`event: ${json.type}\\ndata: ${JSON.stringify(json)}\\n\\n`);
                send(model);
                for (let n = 1; n <= 10000; ++n) {
                  const next = structuredClone(sample);
                  Object.assign(next, {number: n, running: 40, time_us: sample.time_us + n * 250000});
                  for (const key of Object.keys(next.totals)) next.totals[key] += n * 1000;
                  next.requests = Array.from({length: 40}, (_, k) => ({id: n * 10 + k, request_id: `r${n * 10 + k}`,
                    phase: 'decode', prompt_tokens: 5, cached_tokens: 0, computed_tokens: 5, output_tokens: n,
                    max_tokens: 1000000, queue_us: 1, age_us: 2, blocked_us: 3}));
                  send(next);
                  while (n >= window.allowed) await new Promise((go) => setTimeout(go, 20));
                  if (n % 25 === 0) await new Promise(requestAnimationFrame);
                }
              }"""})
            try:
                self.browser.get(server.url + "/")
                nodes, heap = self.counted_at(1000)
                self.js("void (window.allowed = 10001)")
                nodes_after, heap_after = self.counted_at(10_000)
                self.assertEqual(self.js("Number(document.querySelector('#chart-found').dataset.points || 0)"), 600)
                self.assertEqual(self.js("document.querySelectorAll('#request-rows tr').length"), 40)
                self.assertLessEqual(nodes_after, nodes)
                self.assertLess(heap_after, heap + 3e6)
                self.assertEqual(self.errors(), [])
            finally:
                self.browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)

    def counted_at(self, sample):
        """Elements of the page and bytes of its heap when the sample has been drawn."""
        self.wait("document.querySelector('#map').dataset.sample", lambda n: n == str(sample))
        for _ in range(2):
            self.browser.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        return (self.js("document.querySelectorAll('*').length"),
                self.browser.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"])


if __name__ == "__main__":
    unittest.main()
