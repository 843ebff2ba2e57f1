"""Three parties in three processes, over Dask's communications; one is killed and restarted during the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnnzoo_federated import Coordinator, Party, read_log
from test_federated import OPTIONS, tables

import bnnzoo
from bnnzoo.errors import UsageError

pytest.importorskip("distributed")


class Served:
    """A party's process, `bnnzoo party serve`, always on the same port."""

    def __init__(self, folder: Path, table: tuple[np.ndarray, np.ndarray]):
        self.folder, self.address = folder, "tcp://127.0.0.1:0"
        folder.mkdir()
        np.savez(folder / "rows.npz", x=table[0], y=table[1])
        self.process: Any = None

    def start(self) -> Served:
        command = [sys.executable, "-m", "bnnzoo", "party", "serve", str(self.folder), "--listen", self.address]
        command += ["--data", str(self.folder / "rows.npz"), "--batch-size", "20", "--noise-sd", "0.05"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().strip()
        assert self.address.startswith("tcp://127.0.0.1:")
        return self

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def served(tmp_path):
    servers = {name: Served(tmp_path / name, table) for name, table in zip("abc", tables(), strict=True)}
    starting = [threading.Thread(target=party.start) for party in servers.values()]
    for thread in starting:
        thread.start()
    for thread in starting:
        thread.join()
    yield servers
    for party in servers.values():
        party.kill()


def _sample(parties: Any, out: Path, observer: Any = None) -> bnnzoo.Run:
    return Coordinator(parties, patience=20.0).sample(
        "linear", "penalty", out=out, chains=4, warmup=60, draws=60, seed=2, observer=observer, **OPTIONS
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_three_processes_one_killed_and_started_again(served, tmp_path):
    """The draws equal those of the same parties in this process bit for bit, in spite of the kill."""
    phases = []

    def kill_once(progress: Any) -> None:
        phases.append(progress)
        if len(phases) == 75:
            served["b"].kill()
            threading.Thread(target=served["b"].start).start()

    run = _sample({name: party.address for name, party in served.items()}, tmp_path / "run.nc", kill_once)
    assert json.loads(run.attributes["asked_again"])["b"] > 0
    values_here = {
        name: Party(table, tmp_path / "here" / name, batch_size=20, noise_sd=0.05, secret=_secret(served[name]))
        for name, table in zip("abc", tables(), strict=True)
    }
    same = _sample(values_here, tmp_path / "same.nc")
    for name in ("weight", "bias"):
        assert np.array_equal(run.posterior["posterior"][name], same.posterior["posterior"][name])
    # Messages of b before and after: sums of differences, an offer, and its agreement.
    shapes = {
        (line["question"], name, *value["shape"])
        for line in read_log(tmp_path / "b")
        for name, value in line["sent"].items()
    }
    assert {s for s in shapes if s[0] != "offer"} == {
        ("agree", "agreed"),
        ("sums", "unknown"),
        ("sums", "used"),
        ("sums", "sums", 4, 3),
    }
    assert {s[1:] for s in shapes if s[0] == "offer" and len(s) > 2} == {
        ("x_sum", 2),
        ("x_square", 2),
        ("y_sum", 1),
        ("y_square", 1),
    }
    _no_code_comes_over_the_line(served["a"].address, tmp_path / "stolen")


def _secret(party: Served) -> bytes:
    return (party.folder / "secret").read_bytes()


class _Code:
    """An object whose pickle makes a folder when it is opened."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _no_code_comes_over_the_line(address: str, path: Path) -> None:
    """Check that a party's process opens no pickle, and continues to answer."""
    import asyncio

    from distributed.comm import connect
    from distributed.protocol.serialize import ToPickle

    async def send(message: Any, **greeting: Any) -> Any:
        comm = await connect(address, deserialize=False, handshake_overrides=greeting)
        await comm.write({"question": "offer", "words": message})
        try:
            return await comm.read()
        finally:
            comm.abort()

    with pytest.raises(OSError, match="closed"):
        asyncio.run(send(ToPickle(_Code(path))))
    with pytest.raises(OSError, match="closed"):
        asyncio.run(send({}, x=ToPickle(_Code(path))))
    assert not path.exists()
    assert asyncio.run(send({}))["rows"] == 60


def test_half_of_the_certificates_are_refused(tmp_path):
    from bnnzoo_federated import security

    assert security(None, None, None) == {}
    with pytest.raises(UsageError, match="require each other"):
        security(tmp_path / "ca.pem", None, None)
