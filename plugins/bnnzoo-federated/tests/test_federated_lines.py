"""Messages to a coordinator over a line execute no code, and are checked before they are used."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnnzoo_federated import Coordinator, DaskLine, Party
from bnnzoo_federated.lines import LocalLine
from test_federated import OPTIONS, Unreliable, _draws, _short, parties, tables

from bnnzoo.errors import BnnzooError

# ---- code ----------------------------------------------------------------------------------------


class _Code:
    """A pickle that would run code when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def impostor():
    """Start listeners that are no parties: at their address every question gets `answer`."""
    distributed = pytest.importorskip("distributed")
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    listening = []

    async def listen(answer: Any, greeting: dict[str, Any]) -> str:
        async def handle(comm: Any) -> None:
            await comm.read()
            await comm.write(answer)

        listener = distributed.comm.listen("tcp://127.0.0.1:0", handle)
        listener.on_connection = partial(listener.on_connection, handshake_overrides=greeting)
        await listener.start()
        listening.append(listener)
        return listener.contact_address

    yield lambda answer, **greeting: asyncio.run_coroutine_threadsafe(listen(answer, greeting), loop).result(10)
    for listener in listening:
        loop.call_soon_threadsafe(listener.stop)
    loop.call_soon_threadsafe(loop.stop)


async def _as_dask_reads(address: str) -> Any:
    from distributed.comm import connect

    comm = await connect(address, deserialize=False)
    try:
        await comm.write({})
        return await comm.read()
    finally:
        comm.abort()


@pytest.mark.parametrize("at", ["answer", "greeting", "words"])
def test_an_answer_runs_no_code(impostor, at, tmp_path):
    protocol = pytest.importorskip("distributed.protocol")
    created_file = tmp_path / "made"
    code = protocol.ToPickle(_Code(created_file))
    if at == "words":
        address = impostor({"__Enum__": True, "__module__": "os", "__name__": "environ", "name": "clear"})
    else:
        address = impostor({"x": code}) if at == "answer" else impostor({}, x=code)
    message = "must contain|signature" if at == "words" else "no party answers at this address"
    with pytest.raises(BnnzooError, match=rf"^party a: .*({message})"):
        _short(Coordinator({"a": address}, limit=1.0), tmp_path / "run.nc")
    assert not created_file.exists()
    if at != "words":  # positive control: Dask's own reader
        asyncio.run(_as_dask_reads(address))
        assert created_file.exists()


def test_dask_itself_goes_on_in_the_same_process(impostor):
    """`DaskExecutor` needs pickles of functions and of their results."""
    distributed = pytest.importorskip("distributed")
    assert DaskLine(impostor({"rows": 3})).begin("offer", {})(5.0) == {"rows": 3}
    cluster = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "protocol": "tcp://"}
    with distributed.Client(**cluster, dashboard_address=":0", set_as_default=False) as client:
        assert client.submit(lambda path: path / "b", Path("a")).result(20) == Path("a") / "b"


def test_an_unreachable_party_is_named_in_the_error(impostor, tmp_path):
    line = DaskLine("nonsense://127.0.0.1:1")
    with pytest.raises(BnnzooError, match=r"party a: nonsense://.*bnnzoo party serve"):
        _short(Coordinator({"a": line}), tmp_path / "run.nc")
    with pytest.raises(BnnzooError, match=r"party a: tcp://.*the reply is not a mapping"):
        _short(Coordinator({"a": impostor([1, 2])}), tmp_path / "run.nc")


# ---- lies ----------------------------------------------------------------------------------------


class Lying:
    """A line to a party that changes the answers to one question."""

    def __init__(self, party: Party, question: str, change: Any):
        self.line, self.question, self.change = LocalLine(party), question, change

    def begin(self, question: str, arguments: Any) -> Any:
        def wait(seconds: float) -> Any:
            answer = self.line.begin(question, arguments)(seconds)
            return self.change(answer) if question == self.question else answer

        return wait


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
        ("offer", {"rows": 0}, "rows: invalid values in the offer"),
        ("offer", {"rows": True}, "rows, batch_size"),
        ("offer", {"rows": "60"}, "rows, batch_size"),
        ("offer", {"batch_size": 1}, "batch_size: invalid"),
        ("offer", {"sampling": "all"}, "sampling: invalid"),
        ("offer", {"noise_sd": float("nan")}, "noise_sd: invalid"),
        ("offer", {"noise_sd": -1.0}, "noise_sd: invalid"),
        ("offer", {"fingerprint": ""}, "fingerprint: invalid"),
        ("offer", {"signature": "{"}, "signature: unreadable"),
        ("offer", {"signature": 3}, "signature: unreadable"),
        ("offer", {"x_sum": [1.0]}, "x_sum: must be 2 numbers"),
        ("offer", {"x_sum": [1.0, float("inf")]}, "x_sum: must be finite"),
        ("offer", {"y_square": ["1"]}, "y_square: must be 1 numbers"),
        ("offer", {"more": 1}, "must contain exactly"),
        ("agree", {"agreed": "another"}, "expected a confirmation of the agreement"),
        ("sums", {"sums": [[1.0, 2.0, 3.0]]}, "sums: must be 3 x 3 numbers"),
        ("sums", {"sums": [[1.0, 2.0, 3.0], [1.0], [1.0, 2.0, 3.0]]}, "sums: must be 3 x 3 numbers"),
        ("sums", {"sums": [["1", "2", "3"]] * 3}, "sums: must be 3 x 3 numbers"),
        ("sums", {"sums": [[10**400] * 3] * 3}, "sums: must be 3 x 3 numbers"),
        ("sums", {"used": 39}, "used: must be 40, the offered batch size"),
        ("sums", {"unknown": "x"}, "must contain exactly"),
    ],
)
def test_an_invalid_reply_is_refused_naming_the_party(question, change, message, tmp_path):
    members: dict[str, Any] = dict(parties(tmp_path))
    members["b"] = Lying(
        Party(tables()[0], tmp_path / "x", batch_size=40), question, lambda answer: {**answer, **change}
    )
    with pytest.raises(BnnzooError, match=f"^party b: invalid reply to {question}: {message}"):
        _short(Coordinator(members), tmp_path / "run.nc")


def test_a_refusal_cannot_send_control_characters_to_the_terminal(tmp_path):
    line = Lying(Party(tables()[0], tmp_path / "x", batch_size=40), "offer", lambda _: {"refused": "\x1b[2J" * 999})
    with pytest.raises(BnnzooError) as error:
        _short(Coordinator({"a": line}), tmp_path / "run.nc")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 600


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_step_with_an_infinite_log_likelihood_is_rejected(tmp_path):
    """Sums that are not finite do not end a run."""
    first = []

    def change(answer: Any) -> Any:
        if first:
            answer = {**answer, "sums": [[float("-inf"), float("inf"), float("-inf")], [float("nan")] * 3, [0.0] * 3]}
        first.append(answer)
        return answer

    line = Lying(Party(tables()[0], tmp_path / "x", batch_size=40), "sums", change)
    run = _short(Coordinator({"a": line}), tmp_path / "run.nc", warmup=0, draws=5)
    draws = _draws(run)
    assert np.all(draws[:2] == draws[:2, :1])
    assert np.any(draws[2] != draws[2, :1])


# ---- parties that are started again --------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"batch_size": 10}, "batch_size"),
        ({"sampling": "disjoint"}, "sampling"),
        ({"noise_sd": 3.0}, "noise_sd"),
        ({"secret": b"another secret of 32 bytes      "}, "fingerprint"),
        ({"data": (tables()[0][0][::-1], tables()[0][1])}, "fingerprint"),
        ({"data": (tables()[0][0], tables()[0][1] + 1)}, "fingerprint"),
        ({"data": (tables()[0][0][:30], tables()[0][1][:30]), "batch_size": 10}, "rows, batch_size, fingerprint"),
    ],
)
def test_a_party_that_is_started_again_as_another_ends_the_run(more, message, tmp_path):
    starts: list[Any] = [{}, more]
    settings = {"data": tables()[0], "batch_size": 20}
    line = Unreliable(lambda: Party(folder=tmp_path / "a", **{**settings, **starts.pop(0)}), {9: "killed"})
    with pytest.raises(
        BnnzooError, match=f"^party a: agree: {message}: changed since the offer; start the party with the offered"
    ):
        _short(Coordinator({"a": line}), tmp_path / "run.nc", warmup=0)


def test_a_fingerprint_depends_on_the_secret(tmp_path):
    first, repeat, other = (
        Party(tables()[0], tmp_path / folder, batch_size=20).answer("offer", {})["fingerprint"] for folder in "aab"
    )
    assert first == repeat != other


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_party_that_restarts_during_the_agreement_changes_no_bit(tmp_path):
    make = partial(Party, tables()[0], tmp_path / "a", batch_size=20)
    first = _short(Coordinator({"a": make()}), tmp_path / "1.nc", warmup=0)
    # 9: sums, killed; 10: sums, unknown; 11: agree, killed once it has agreed; 12: agree; 13: sums, killed; and so on.
    line = Unreliable(make, {9: "killed", 11: "killed", 13: "killed", 15: "killed", 16: "forgets"})
    repeated_run = _short(Coordinator({"a": line}), tmp_path / "2.nc", warmup=0)
    assert np.array_equal(_draws(first), _draws(repeated_run))


def test_a_party_that_restarts_for_ever_ends_the_run(tmp_path):
    class Forgetful(LocalLine):
        def begin(self, question: str, request: Any) -> Any:
            if question == "sums":
                self._party._agreed.clear()
            return super().begin(question, request)

    line = Forgetful(Party(tables()[0], tmp_path / "a", batch_size=20))
    with pytest.raises(BnnzooError, match="party a: restarted 10 times in one step"):
        Coordinator({"a": line}).sample("linear", out=tmp_path / "run.nc", chains=2, warmup=0, draws=2, **OPTIONS)
