"""`bnnzoo party`: found by the hook, imported when it runs, without an earlier import of JAX."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import bnnzoo_federated
import numpy as np
import pytest
from bnnzoo_federated import Coordinator, DaskLine, Party

from bnnzoo import cli
from bnnzoo.errors import UsageError
from bnnzoo.plugins import registry


def call(*arguments: Any) -> int:
    return cli.run([str(word) for word in arguments])


def test_party_command_passes_its_options_to_the_party(monkeypatch, tmp_path):
    calls: list[Any] = []
    monkeypatch.setattr("bnnzoo_federated.Party", lambda *args, **named: calls.append((args, named)))
    monkeypatch.setattr("bnnzoo_federated.security", lambda *files, listening: (files, listening))
    monkeypatch.setattr("bnnzoo_federated.serve", lambda party, at, *, listening, ready: calls.append((at, listening)))
    arguments = (
        "--data a.csv --batch-size 50 --sampling disjoint --noise-sd 0.5 --target u --target v --task regression"
    )
    assert call("party", "serve", tmp_path, *arguments.split(), "--listen", "tls://h:1", "--tls-cert", "c") == 0
    named = {"batch_size": 50, "sampling": "disjoint", "noise_sd": 0.5, "target": ["u", "v"], "task": "regression"}
    named |= {"privacy": None, "public": None}
    assert calls == [(("a.csv", tmp_path), named), ("tls://h:1", ((None, Path("c"), None), True))]


def _limits(folder: Path) -> None:
    """Write the two tables that the pages name."""
    rows = np.random.default_rng(1).uniform(-1, 1, (60, 2))
    for name, table in (("a.csv", rows), ("limits.csv", np.array([[-1.0, -1.0], [1.0, 1.0]]))):
        np.savetxt(folder / name, table, delimiter=",", header="x,y", comments="")


@pytest.mark.parametrize("page", ["README.md", "docs/federated.md"])
def test_the_commands_of_a_private_party_on_the_pages_work(page, tmp_path, monkeypatch, capsys):
    text = (Path(__file__).parents[1] / page).read_text(encoding="utf-8")
    (line,) = [
        line.strip() for line in text.splitlines() if line.startswith("    bnnzoo party serve") and "eps" in line
    ]
    _limits(tmp_path)
    monkeypatch.chdir(tmp_path)
    parties = []
    monkeypatch.setattr("bnnzoo_federated.serve", lambda party, at, **_: parties.append(party))
    assert call(*line.split()[1:]) == 0
    assert parties[0].releases_left == 2138
    expected = "a: epsilon 4 and delta 1e-05 allow 2138 releases, one per step and chain; 2138 are left\n"
    assert capsys.readouterr().err == expected
    assert call("party", "log", "a") == 0
    assert "0 releases spent epsilon 0 of 4" in capsys.readouterr().out


def test_limits_of_privacy_require_each_other(tmp_path, capsys, monkeypatch):
    _limits(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert call("party", "serve", "a", "--data", "a.csv", "--epsilon", "4") == 2
    assert capsys.readouterr().err == "bnnzoo: --epsilon, --delta, --clip: require each other; give all three\n"
    limits = ("--epsilon", "4", "--delta", "1e-5", "--clip", "0.02")
    assert call("party", "serve", "a", "--data", "a.csv", "--public", "limits.csv", *limits) == 2
    expected = (
        "bnnzoo: a: --noise-sd: must be > 0 for differential privacy (got 0.0); use 2 / sqrt(number of parties)\n"
    )
    assert capsys.readouterr().err == expected


def test_certificates_and_tls_addresses_require_each_other(tmp_path, capsys):
    certificates = [word for name in ("ca", "cert", "key") for word in (f"--tls-{name}", "x.pem")]
    remedy = "requires certificates; give --tls-ca, --tls-cert and --tls-key, or from Python the result of security"
    for words, message in (
        (("--listen", "tls://127.0.0.1:0"), f"bnnzoo: tls://127.0.0.1:0: {remedy}"),
        (certificates, "bnnzoo: tcp://127.0.0.1:0: conflicts with certificates"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bnnzoo_federated.security", lambda *files, listening: {"x": 1} if files[0] else {})
            assert call("party", "serve", tmp_path / "a", "--data", "a.csv", "--batch-size", "5", *words) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UsageError, match=f"^tls://h:1: {remedy}"):
        Coordinator({"a": "tls://h:1"})
    with pytest.raises(UsageError, match=r"^tcp://h:1: conflicts with certificates"):
        DaskLine("tcp://h:1", connection={"ssl_context": None})
    party = Party((np.zeros((4, 1)), np.arange(4.0)), tmp_path / "b", batch_size=2)
    with pytest.raises(UsageError, match=f"^tls://h:1: {remedy}"):
        bnnzoo_federated.serve(party, "tls://h:1")


def test_an_address_or_a_file_that_cannot_be_used_is_one_line(tmp_path, capsys):
    pytest.importorskip("distributed")
    for name, text in (("a.csv", "x,y\n1,2\n3,4\n5,6\n"), ("ca.pem", "no certificate")):
        (tmp_path / name).write_text(text)
    serve = ("party", "serve", tmp_path / "a", "--data", tmp_path / "a.csv", "--batch-size", "2")

    def files(ca: str) -> list[Any]:
        return ["--tls-ca", tmp_path / ca, "--tls-cert", tmp_path / "ca.pem", "--tls-key", tmp_path / "ca.pem"]

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        for words, message in (
            (
                [*serve, "--listen", address],
                rf"{address}: cannot listen at this address \(.*in use\); use another --li",
            ),
            ([*serve, "--listen", "no://h:1"], r"no://h:1: cannot listen at this address \(unknown address scheme"),
            ([*serve, "--listen", "tls://h:1", *files("no.pem")], r".*/no\.pem: no such file; "),
            ([*serve, "--listen", "tls://h:1", *files("ca.pem")], r".*/ca\.pem: cannot be read as an authority, "),
            ([*serve[:2], tmp_path / "a.csv", *serve[3:]], r".*/a\.csv: cannot create the folder \(File exists\)"),
        ):
            assert call(*words) == 2
            assert re.fullmatch(f"bnnzoo: {message}.*\n", capsys.readouterr().err)


def test_help_shows_party_and_imports_neither_jax_nor_dask():
    code = (
        "import sys\nfrom bnnzoo import cli\n"
        "code = cli.run(['--help'])\n"
        "heavy = {'jax', 'numpy', 'distributed', 'bnnzoo_federated.commands'}\n"
        "print(code, sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stderr.splitlines() == ["0 []"]
    assert "Serve local rows to a coordinator" in process.stdout


def test_plugins_attributes_the_party_command_to_this_package():
    entry = registry.find(registry.COMMANDS, "party")
    assert (entry.distribution, entry.target) == ("bnnzoo-federated", "bnnzoo_federated.commands:app")
    assert registry.import_failures() == []


def test_every_public_name_is_there():
    assert all(getattr(bnnzoo_federated, name) for name in bnnzoo_federated.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = bnnzoo_federated.Nothing


def test_the_log_of_a_party_as_a_table_and_as_json(tmp_path, capsys):
    party = Party((np.zeros((4, 1)), np.arange(4.0)), tmp_path / "a", batch_size=2)
    party.answer("offer", {})
    assert call("party", "log", tmp_path / "a") == 0
    out = capsys.readouterr().out
    assert out.startswith("question")
    assert out.endswith(f"1 answers sent from {tmp_path / 'a'}\n")
    assert call("party", "log", tmp_path / "a", "--json") == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert line["sent"]["rows"]["values"] == 4


def test_wrong_usage_of_party_is_one_line(tmp_path, capsys):
    assert call("party", "serve", tmp_path / "a") == 2
    assert capsys.readouterr().err == "bnnzoo: Missing option '--data'; try bnnzoo party serve --help\n"
    assert call("party", "log", tmp_path / "nowhere") == 2
    assert capsys.readouterr().err.startswith(f"bnnzoo: {tmp_path / 'nowhere' / 'sent.jsonl'}: no such log")
    assert call("party") == 2
    assert capsys.readouterr().err == "bnnzoo: Missing command; try bnnzoo party --help\n"
