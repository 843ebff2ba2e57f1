"""The command `bnnzoo party`: serve rows to a coordinator, and show the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from bnnzoo.cli import common_options as common
from bnnzoo.cli.output import echo, print_json
from bnnzoo.errors import UsageError

app = typer.Typer(
    help="Serve local rows to a coordinator, or show what was sent.",
    rich_markup_mode="rich",
)

_Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="folder of the party: its log and its secret", show_default=False)
]
_Epsilon = Annotated[
    float | None,
    typer.Option("--epsilon", help="limit of differential privacy for all answers together", show_default=False),
]
_Delta = Annotated[
    float | None, typer.Option("--delta", help="with --epsilon: the delta of the limit", show_default=False)
]
_Clip = Annotated[
    float | None,
    typer.Option(
        "--clip",
        help="with --epsilon: larger absolute differences of a row's log-likelihood are clipped to this value",
        show_default=False,
    ),
]
_Public = Annotated[
    str | None,
    typer.Option(
        "--public",
        help="with --epsilon: rows that are not confidential; they determine columns, classes and scaling",
        show_default=False,
    ),
]
_Authority = Annotated[Path | None, typer.Option("--tls-ca", help="for tls:// addresses: the certificate authority")]
_Certificate = Annotated[Path | None, typer.Option("--tls-cert", help="for tls:// addresses: the party's certificate")]
_Key = Annotated[Path | None, typer.Option("--tls-key", help="for tls:// addresses: the party's key")]


@app.command()
def serve(
    folder: _Folder,
    data: Annotated[
        str, typer.Option("--data", help="the party's rows, as for bnnzoo sample --data", show_default=False)
    ],
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=2,
            help="rows per step; only sums over these rows are sent; conflicts with --epsilon, which uses all rows",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", help="address at which the party answers; port 0 means any free port")
    ] = "tcp://127.0.0.1:0",
    target: Annotated[
        list[str] | None, typer.Option("--target", help="a target column; repeatable; default: the last column")
    ] = None,
    task: Annotated[
        Literal["regression", "classification"] | None,
        typer.Option("--task", help="kind of target; default: determined from the data", show_default=False),
    ] = None,
    sampling: Annotated[
        Literal["replacement", "disjoint"] | None,
        typer.Option(
            "--sampling",
            help="disjoint: use no row twice in a step; conflicts with --epsilon, which uses all rows",
            show_default="replacement",
        ),
    ] = None,
    noise_sd: Annotated[
        float,
        typer.Option("--noise-sd", min=0, help="sd of normal noise added to the sum of differences"),
    ] = 0.0,
    epsilon: _Epsilon = None,
    delta: _Delta = None,
    clip: _Clip = None,
    public: _Public = None,
    tls_ca: _Authority = None,
    tls_cert: _Certificate = None,
    tls_key: _Key = None,
    debug: common.Debug = False,
) -> None:
    """Send sums over batches of local rows to a coordinator (`bnnzoo_federated.Coordinator`).

    The rows stay on this machine. The command prints its address and answers until it is stopped. After a crash, start
    the same command again; the run then continues.

    \b
    Examples:
      bnnzoo party serve a --data a.csv --batch-size 50 --listen tcp://127.0.0.1:8801
      bnnzoo party serve a --data a.csv --batch-size 50 --sampling disjoint --noise-sd 0.5
      bnnzoo party serve a --data a.csv --public limits.csv --epsilon 4 --delta 1e-5 --clip 0.02 --noise-sd 2
    """
    del debug
    from bnnzoo_federated import Party, Privacy, security
    from bnnzoo_federated import serve as serve_party
    from bnnzoo_federated.lines import check_certificates

    limits = (epsilon, delta, clip)
    privacy = Privacy(*limits) if None not in limits else None  # pyright: ignore[reportArgumentType]
    if privacy is None and limits != (None, None, None):
        raise UsageError("--epsilon, --delta, --clip: require each other; give all three")
    listening = security(tls_ca, tls_cert, tls_key, listening=True)
    check_certificates(listen, has_certificates=bool(listening))
    party = Party(
        data,
        folder,
        batch_size=batch_size,
        sampling=sampling,
        noise_sd=noise_sd,
        privacy=privacy,
        public=public,
        target=target or (),
        task=task,
    )
    if privacy is not None:
        typer.echo(
            f"{folder}: epsilon {privacy.epsilon:g} and delta {privacy.delta:g} allow {privacy.releases(noise_sd)} "
            f"releases, one per step and chain; {party.releases_left} are left",
            err=True,
        )
    serve_party(party, listen, listening=listening, ready=lambda address: echo(address))


@app.command()
def log(folder: _Folder, json: common.Json = False, debug: common.Debug = False) -> None:
    """Show the answers that a party has sent: the numbers of answers, and the names and shapes of their values.

    \b
    Examples:
      bnnzoo party log a
      bnnzoo party log a --json
    """
    del debug
    from bnnzoo_federated.log import read_log
    from bnnzoo_federated.log_table import show_log

    if json:
        print_json(list(read_log(folder)))
    else:
        echo(show_log(folder))
