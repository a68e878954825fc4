"""Watches that a server of several models has no more memory than its ledgers say, every 10 ms."""

import http.client
import pathlib
import re
import threading
import time

RESIDENT_S, LEDGER_S = 0.01, 0.02
LEDGER = re.compile(rb"^moe_memory_ledger_bytes (\S+)$", re.MULTILINE)


class MemoryWatch(threading.Thread):
    """From its making to stop(): the resident size of a process beside `moe_memory_ledger_bytes` of its /metrics.

    The ledgers are asked every 20 ms, so that what holds between two answers is taken to be the larger of them."""

    def __init__(self, pid, port):
        super().__init__(daemon=True)
        self.proc = pathlib.Path(f"/proc/{pid}")
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.ending = threading.Event()
        self.samples = 0
        self.over = []        # (resident, ledger, kinds) of samples above their ledgers
        self.closest = None   # (resident / ledger, resident, ledger, kinds)
        self.most_resident = 0
        self.longest_gap_s = 0
        self.start()

    def ledger(self):
        self.connection.request("GET", "/metrics")
        return int(float(LEDGER.search(self.connection.getresponse().read())[1]))

    def resident(self):
        """VmRSS and what it is made of, in bytes."""
        found = re.findall(r"^(VmRSS|RssAnon|RssFile|RssShmem):\s+(\d+) kB$", (self.proc / "status").read_text(), re.MULTILINE)
        kinds = {name: int(kib) << 10 for name, kib in found}
        return kinds.pop("VmRSS"), kinds

    def run(self):
        before, samples, last = self.ledger(), [], time.monotonic()
        try:
            while not self.ending.is_set():
                began = time.monotonic()
                while time.monotonic() - began < LEDGER_S:
                    samples.append(self.resident())
                    now = time.monotonic()
                    self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
                    time.sleep(max(0.0, RESIDENT_S - (time.monotonic() - now)))
                after = self.ledger()
                self.judge(samples, max(before, after))
                before, samples = after, []
        except (OSError, http.client.HTTPException, KeyError):
            if not self.ending.is_set():
                raise

    def judge(self, samples, ledger):
        for resident, kinds in samples:
            self.samples += 1
            self.most_resident = max(self.most_resident, resident)
            if self.closest is None or resident / ledger > self.closest[0]:
                self.closest = (resident / ledger, resident, ledger, kinds)
            if resident > ledger:
                self.over.append((resident, ledger, kinds))

    def stop(self):
        self.ending.set()
        self.join()
        return self

    def text(self):
        if self.closest is None:
            return "memory: nothing was seen"
        share, resident, ledger, kinds = self.closest
        parts = ", ".join(f"{name} {bytes_ / 2**20:.0f}" for name, bytes_ in kinds.items())
        return (f"memory: {self.samples} samples, {len(self.over)} above the ledgers; at most {self.most_resident / 2**20:.0f} MiB "
                f"resident; closest {resident / 2**20:.1f} MiB ({parts}) of {ledger / 2**20:.1f} MiB ({share:.3f}); longest "
                f"time between two samples {self.longest_gap_s * 1e3:.0f} ms")
