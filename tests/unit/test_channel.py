"""The channel: nothing that was logged is lost, and the training thread never waits."""

from __future__ import annotations

import os
import pickle
import threading
import time
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import raynb.telemetry.channel as channel_module
from raynb.telemetry.channel import ActorTransport, Channel, interval_s
from raynb.telemetry.events import Batch
from raynb.telemetry.loglines import MAX_LOG_LINES


class FakeTransport:
    """Takes batches unless told to refuse, to be slow, or to fail."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.refuse = False
        self.error: Exception | None = None
        self.block = threading.Event()
        self.block.set()

    def send(self, batch: Batch) -> bool:
        self.block.wait()
        if self.error is not None:
            raise self.error
        if self.refuse:
            return False
        self.batches.append(batch)
        return True

    def drain(self, timeout: float) -> bool:
        return not self.refuse

    def records(self) -> list[tuple[float, dict[str, Any]]]:
        """Steps and values in the order of arrival."""
        found = []
        for batch in self.batches:
            if batch.records is None:
                continue
            rows: list[dict[str, Any]] = [{} for _ in range(len(batch.records))]
            for name, (at, values) in batch.records.metrics.items():
                for row, value in zip(at, values, strict=True):
                    rows[row][name] = float(value)
            for row, name, text in batch.records.texts:
                rows[row][name] = text
            found += list(zip(batch.records.steps.tolist(), rows, strict=True))
        return found


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def channel(transport: FakeTransport) -> Iterator[Channel]:
    one = Channel(transport, rank=3, attempt=2)
    yield one
    transport.block.set()
    transport.refuse, transport.error = False, None
    one.close(5)


def steps(transport: FakeTransport) -> list[float]:
    return [step for step, _ in transport.records()]


# -- steps ---------------------------------------------------------------------------------------


def test_steps_count_by_themselves(channel: Channel, transport: FakeTransport) -> None:
    channel.log({"a": 1})
    channel.log({"a": 2})
    channel.report({"val": 1})  # the step of the logs before it
    channel.report({"val": 2})  # no log since: counts on
    channel.log({"a": 3})
    channel.log({"a": 4}, step=100)
    channel.report({"val": 3})
    channel.log({"a": 5})
    assert channel.close(5)
    assert steps(transport) == [0, 1, 1, 2, 3, 100, 100, 101]


def test_reports_alone_count_from_zero(channel: Channel, transport: FakeTransport) -> None:
    channel.report({"a": 1})
    channel.report({"a": 2})
    assert channel.close(5)
    assert steps(transport) == [0, 1]


@pytest.mark.parametrize("odd", ["epoch 3", float("nan"), float("inf"), None, object(), [1, 2]])
def test_a_step_that_is_no_number_counts_on(
    channel: Channel, transport: FakeTransport, odd: Any
) -> None:
    channel.log({"a": 1}, step=7)
    channel.log({"a": 2}, step=odd)
    channel.log({"a": 3})
    assert channel.close(5)
    assert steps(transport) == [7, 8, 9]


def test_a_step_tensor_is_read_at_once(channel: Channel, transport: FakeTransport) -> None:
    step = torch.tensor(5)
    channel.log({"a": 1}, step=step)  # type: ignore[arg-type]
    step += 10
    channel.log({"a": 1}, step=np.int64(9))  # type: ignore[arg-type]
    assert channel.close(5)
    assert steps(transport) == [5, 9]


# -- values --------------------------------------------------------------------------------------


class Touchy:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_odd_values_do_not_raise(channel: Channel, transport: FakeTransport) -> None:
    channel.log({"a": Touchy(), "b": None, 3: [1], "c": torch.zeros(2), "d": "\ud800"})
    assert channel.close(5)
    [(_, row)] = transport.records()
    assert row["a"] == "<Touchy: its text raises RuntimeError>"
    assert row["b"] == "None" and row["3"] == "[1]" and row["d"] == "\\ud800"
    assert row["c"].startswith("Tensor of shape (2,)")


def test_later_changes_do_not_reach_what_was_logged(
    channel: Channel, transport: FakeTransport
) -> None:
    loss, array, metrics = torch.tensor(1.0), np.array(1.0), {"x": 1.0}
    transport.refuse = True
    channel.log({"loss": loss, "array": array})
    channel.log(metrics)
    loss += 5
    array += 5
    metrics["x"] = 9.0
    metrics["y"] = 1.0
    transport.refuse = False
    assert channel.close(5)
    assert [row for _, row in transport.records()] == [{"loss": 1.0, "array": 1.0}, {"x": 1.0}]


def test_log_is_quick_and_does_no_io(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()  # the channel's thread hangs in send
    channel.log({"a": 0})
    time.sleep(0.3)
    start = time.perf_counter()
    for k in range(1000):
        channel.log({"a": k})
    assert time.perf_counter() - start < 1.0
    transport.block.set()
    assert channel.close(5) and len(transport.records()) == 1001


def test_four_threads(channel: Channel, transport: FakeTransport) -> None:
    def work(name: str) -> None:
        for k in range(10_000):
            channel.log({name: k})

    threads = [threading.Thread(target=work, args=(f"t{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert channel.close(20)
    rows = transport.records()
    assert [step for step, _ in rows] == list(range(40_000))  # unique and in order
    for k in range(4):
        assert [row[f"t{k}"] for _, row in rows if f"t{k}" in row] == list(range(10_000))


def test_a_forked_process_keeps_quiet(channel: Channel, transport: FakeTransport) -> None:
    pid = os.fork()
    if pid == 0:
        channel.log({"a": 1})
        os._exit(0 if not channel._records else 1)
    assert os.waitpid(pid, 0)[1] == 0
    channel.log({"a": 2})
    assert channel.close(5)
    assert steps(transport) == [0]


# -- backpressure --------------------------------------------------------------------------------


def test_nothing_is_lost_or_reordered_while_refused(
    channel: Channel, transport: FakeTransport
) -> None:
    for k in range(60):
        transport.refuse = k % 3 != 0
        for _ in range(50):
            channel.log({"a": k})
        time.sleep(0.01)
    transport.refuse = False
    assert channel.close(5)
    assert steps(transport) == list(range(3000))
    assert [b.seq for b in transport.batches] == list(range(1, len(transport.batches) + 1))
    assert {(b.rank, b.attempt) for b in transport.batches} == {(3, 2)}


def test_spill_to_the_spool_and_back(
    channel: Channel, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_PENDING", 100)
    monkeypatch.setattr(channel_module, "MAX_RECORDS", 30)
    monkeypatch.setattr(channel_module, "INTERVAL_S", 0.01)
    transport.refuse = True
    logged = 0
    for round_ in range(4):
        for _ in range(250):
            channel.log({"a": logged, "text": f"t{logged}"})
            logged += 1
        channel.flush(0.05)
        assert channel._spooled > 0 and len(channel._records) < 100
        if round_ == 1:  # some come back in between, then it is refused again
            transport.refuse = False
            channel._send_once()
            channel._send_once()
            transport.refuse = True
    transport.refuse = False
    assert channel.close(10)
    rows = transport.records()
    assert [step for step, _ in rows] == list(range(1000))
    assert all(row == {"a": step, "text": f"t{step:.0f}"} for step, row in rows)
    assert channel._spool is None
    assert max(len(b.records) for b in transport.batches if b.records) <= 30


def test_a_full_disk_loses_nothing(
    channel: Channel, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_PENDING", 10)
    monkeypatch.setattr(channel_module, "MAX_RECORDS", 20)
    real, calls = pickle.dump, []

    def dump(records: Any, file: Any, protocol: int) -> None:
        calls.append(len(records))
        if len(calls) == 2:
            file.write(b"half a rec")
            raise OSError(28, "No space left on device")
        real(records, file, protocol=protocol)

    monkeypatch.setattr(pickle, "dump", dump)
    transport.refuse = True
    channel.log({"a": 0})
    channel.flush(0.01)
    for k in range(1, 60):
        channel.log({"a": k})
    channel.flush(0.2)
    assert len(calls) > 2
    transport.refuse = False
    assert channel.close(5)
    assert steps(transport) == list(range(60))


def test_logs_are_bounded_and_counted(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()
    channel.put("status", "running")
    time.sleep(0.3)  # a first message is on its way and stuck
    for seq in range(channel_module.MAX_LOG_LINES + 500):
        channel.put_log(seq, "out", f"line {seq}")
    channel.count_dropped("logs", 7)
    transport.block.set()
    assert channel.close(5)
    lines = [line for batch in transport.batches for line in batch.logs]
    # What the panel would push out at once is not sent; what the channel could not hold is counted.
    assert [seq for seq, _, _ in lines] == list(range(2500 - MAX_LOG_LINES, 2500))
    assert transport.batches[-1].dropped == {"logs": 507}


def test_replacing_a_line_drops_none(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()
    channel.put("status", "running")
    time.sleep(0.3)
    for seq in range(MAX_LOG_LINES):
        channel.put_log(seq, "out", "first")
    channel.put_log(7, "out", "second")
    transport.block.set()
    assert channel.close(5)
    lines = [line for batch in transport.batches for line in batch.logs]
    assert len(lines) == MAX_LOG_LINES and lines[7] == (7, "out", "second")
    assert transport.batches[-1].dropped == {}


def test_a_line_is_replaced_wherever_it_waits(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()
    channel.put("status", "running")
    time.sleep(0.3)
    channel.put_log(1, "err", "10 %")
    channel.put_log(2, "out", "between")
    channel.put_log(1, "err", "20 %")
    transport.block.set()
    assert channel.close(5)
    assert [line for b in transport.batches for line in b.logs] == [
        (1, "err", "20 %"),
        (2, "out", "between"),
    ]


def test_a_newer_sample_replaces_and_is_counted(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()
    channel.put("status", "running")
    time.sleep(0.3)
    for util in (1, 2, 3):
        channel.put("sample", {"util": util})
    channel.put("failure", {"type": "ValueError"})
    transport.block.set()
    assert channel.close(5)
    assert [b.sample for b in transport.batches if b.sample] == [{"util": 3}]
    assert [b.failure for b in transport.batches if b.failure] == [{"type": "ValueError"}]
    assert transport.batches[-1].dropped == {"samples": 2}


def test_a_sample_replaced_between_two_messages_is_no_loss(transport: FakeTransport) -> None:
    slow = Channel(transport, rank=0, attempt=0, world_size=1200)
    for util in (1, 2, 3):
        slow.put("sample", {"util": util})
    assert slow.close(5)
    assert [b.sample for b in transport.batches] == [{"util": 3}]
    assert transport.batches[-1].dropped == {}


def test_timings_add_up_until_they_are_sent(channel: Channel, transport: FakeTransport) -> None:
    transport.block.clear()
    channel.put("sample", {})
    time.sleep(0.3)
    channel.put("timing", {"waiting_since": 5.0, "reports": 1})
    channel.put("timing", {"waiting_since": None, "step_s": 0.5})
    transport.block.set()
    assert channel.close(5)
    [timing] = [b.timing for b in transport.batches if b.timing]
    assert timing == {"waiting_since": None, "reports": 1, "step_s": 0.5}


def test_each_record_carries_its_epoch(channel: Channel, transport: FakeTransport) -> None:
    channel.log({"a": 1})
    epochs = iter([0.25, 0.5])
    channel.epoch = lambda: next(epochs)  # the third one raises
    for _ in range(3):
        channel.log({"a": 1})
    assert channel.close(5)
    told = np.concatenate([b.records.epochs for b in transport.batches if b.records])
    np.testing.assert_array_equal(told, [np.nan, 0.25, 0.5, np.nan])


# -- many ranks ----------------------------------------------------------------------------------


def test_many_ranks_speak_less_often() -> None:
    assert interval_s(1) == interval_s(80) == 0.2
    for ranks in (200, 500, 1000):
        assert ranks / interval_s(ranks) == pytest.approx(400)
    assert interval_s(100_000) == 3.0


def test_ranks_of_a_large_group_take_turns(transport: FakeTransport) -> None:
    sent = []
    for rank in range(0, 400, 40):
        one = FakeTransport()
        channel = Channel(one, rank, 0, world_size=400)
        channel.log({"a": 1})
        sent.append((channel, one))
    time.sleep(1.45)  # an interval is 1 s, and the ranks' first ones end over another
    told = [bool(one.batches) for _, one in sent]
    assert told[0] and not told[-1] and told == sorted(told, reverse=True)
    # What ends a rank does not wait.
    sent[-1][0].put("failure", {"type": "E"})
    deadline = time.monotonic() + 0.4
    while not sent[-1][1].batches and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sent[-1][1].batches
    assert all(channel.close(5) for channel, _ in sent)


# -- trouble -------------------------------------------------------------------------------------


def test_close_says_what_it_could_not_do_in_time(
    channel: Channel, transport: FakeTransport
) -> None:
    transport.refuse = True
    channel.log({"a": 1})
    start = time.monotonic()
    assert not channel.close(0.4)
    assert time.monotonic() - start < 1.5


def test_close_does_not_wait_for_a_send_that_hangs(
    channel: Channel, transport: FakeTransport
) -> None:
    transport.block.clear()
    channel.log({"a": 1})
    time.sleep(0.3)
    start = time.monotonic()
    assert not channel.close(0.4)
    assert time.monotonic() - start < 1.5


def test_a_transport_that_raises_harms_nobody(channel: Channel, transport: FakeTransport) -> None:
    transport.error = RuntimeError("Ray is shutting down")
    channel.log({"a": 1})
    time.sleep(0.3)
    assert not channel.flush(0.3)
    transport.error = None
    channel.log({"a": 2})
    assert channel.close(5)
    assert steps(transport) == [0, 1]


def test_a_collector_that_raises_does_not_stop_metrics(
    channel: Channel, transport: FakeTransport
) -> None:
    channel.collectors.append(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    channel.collectors.append(lambda: channel.put("shards", [{"name": "train"}]))
    channel.log({"a": 1})
    assert channel.close(5)
    assert steps(transport) == [0] and transport.batches[0].shards == [{"name": "train"}]


def test_a_status_goes_out_at_once(channel: Channel, transport: FakeTransport) -> None:
    channel.put("status", "waiting")
    deadline = time.monotonic() + 2
    while not transport.batches and time.monotonic() < deadline:
        time.sleep(0.005)
    assert transport.batches[0].status == "waiting"


# -- the actor transport, against something that looks like Ray ----------------------------------


class FakeRay:
    """``ray.wait`` and ``ray.get`` over calls that end when the test says so."""

    class exceptions:
        class RayTaskError(Exception):
            pass

        class RayActorError(Exception):
            pass

        class ActorUnavailableError(RayActorError):
            pass

    def __init__(self) -> None:
        self.calls: list[types.SimpleNamespace] = []
        self.lock = threading.Lock()
        self.died: Exception | None = None

    def remote(self, batch: Any) -> types.SimpleNamespace:
        call = types.SimpleNamespace(batch=batch, done=bool(self.died), error=self.died)
        self.calls.append(call)
        return call

    def die(self) -> None:
        """End every call, also those to come, as Ray does for an actor that is gone."""
        self.died = self.exceptions.RayActorError("died")
        for call in self.calls:
            call.done, call.error = True, self.died

    def wait(
        self, refs: list[Any], num_returns: int, timeout: float
    ) -> tuple[list[Any], list[Any]]:
        deadline = time.monotonic() + timeout
        while sum(r.done for r in refs) < num_returns and time.monotonic() < deadline:
            time.sleep(0.002)
        return [r for r in refs if r.done], [r for r in refs if not r.done]

    def get(self, ref: Any) -> None:
        if ref.error is not None:
            raise ref.error


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay()


def actor_transport(fake: FakeRay) -> ActorTransport:
    transport = ActorTransport(fake)
    transport._ray = fake
    return transport


def batch(seq: int) -> Batch:
    return Batch(0, 0, seq)


def test_in_flight_is_bounded(fake_ray: FakeRay) -> None:
    transport = actor_transport(fake_ray)
    taken = [transport.send(batch(k)) for k in range(10)]
    assert taken == [True] * channel_module.MAX_IN_FLIGHT + [False] * 6
    assert not transport.drain(0.01)
    fake_ray.calls[0].done = True
    assert transport.send(batch(10)) and not transport.send(batch(11))
    for call in fake_ray.calls:
        call.done = True
    assert transport.drain(1) and not transport.dead


def test_a_dead_supervisor_ends_the_watching_only(fake_ray: FakeRay) -> None:
    transport = actor_transport(fake_ray)
    channel = Channel(transport, 0, 0)
    channel.log({"a": 1})
    assert not channel.flush(0.1)
    fake_ray.die()
    start = time.monotonic()
    for k in range(100):
        channel.log({"a": k})
    assert not channel.close(3)
    assert time.monotonic() - start < 2 and transport.dead
    assert not channel._records


@pytest.mark.parametrize("error", ["RayTaskError", "ActorUnavailableError"])
def test_a_refused_batch_is_not_a_dead_supervisor(fake_ray: FakeRay, error: str) -> None:
    transport = actor_transport(fake_ray)
    bound = channel_module.MAX_IN_FLIGHT
    for k in range(bound):
        transport.send(batch(k))
    call = fake_ray.calls[0]
    call.done, call.error = True, getattr(FakeRay.exceptions, error)("bad")
    assert transport.send(batch(bound)) and not transport.dead and transport.refused == 1
    for call in fake_ray.calls:
        call.done = True
    assert not transport.drain(1)  # not all was delivered
    assert len(fake_ray.calls) == bound + 1


def test_mapping_that_is_no_dict(channel: Channel, transport: FakeTransport) -> None:
    metrics: Mapping[str, float] = types.MappingProxyType({"a": 1.0})
    channel.log(metrics)
    assert channel.close(5)
    assert transport.records() == [(0, {"a": 1.0})]


# -- large records, and values that are not there yet ---------------------------------------------


def test_records_of_many_values_are_bounded_by_their_values(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "MAX_CELLS", 1_000)
    monkeypatch.setattr(channel_module, "MAX_PENDING_VALUES", 10_000)
    transport.refuse = True
    channel = Channel(transport, 0, 0)
    wide = {f"layer {k}": float(k) for k in range(500)}
    for _ in range(100):
        channel.log(wide)
    deadline = time.monotonic() + 10
    while len(channel._records) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert channel._spooled and not channel._records  # 50,000 values wait in a file
    transport.refuse = False
    assert channel.close()
    assert [step for step, _ in transport.records()] == list(range(100))
    sizes = [
        sum(len(v) for _, v in b.records.metrics.values()) for b in transport.batches if b.records
    ]
    assert max(sizes) <= 1_500 and sum(sizes) == 50_000


class Late:
    """Stands in for a CUDA value whose work is not done: there is no GPU here."""

    def __init__(self, value: Any) -> None:
        self.value = value

    there = threading.Event()

    def ready(self) -> bool:
        return self.there.is_set()

    def item(self) -> Any:
        assert self.there.is_set(), "would have waited"
        return self.value


def test_a_value_that_never_comes_holds_up_nothing_else(
    transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A collective that hangs holds up what was queued on the GPU behind it, for ever: the logs
    # and samples that tell of it must come all the same.
    monkeypatch.setattr(channel_module, "_OnDevice", Late)
    monkeypatch.setattr(channel_module, "_is_cuda_scalar", lambda value: value == "late")
    monkeypatch.setattr(Late, "there", threading.Event())
    channel = Channel(transport, 0, 0)
    channel.log({"loss": 1.0})
    channel.log({"loss": "late"})
    channel.log({"loss": 3.0})
    channel.put_log(1, "out", "still here")
    channel.put("timing", {"still_since": 5.0})
    assert not channel.flush(timeout=0.3)
    assert transport.records() == [(0.0, {"loss": 1.0})]
    assert any(b.logs for b in transport.batches)
    assert any(b.timing == {"still_since": 5.0} for b in transport.batches)
    Late.there.set()
    assert channel.close()
    assert [step for step, _ in transport.records()] == [0.0, 1.0, 2.0]
