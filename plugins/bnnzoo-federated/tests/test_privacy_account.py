"""A private party's account: what it answers, what it charges, and where it ends, also after restarts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bnnzoo_federated import Coordinator, Party, Privacy, guard, read_log, show_log
from bnnzoo_federated.accountant import mu_within
from bnnzoo_federated.messages import Agreement, Request
from bnnzoo_federated.scaling import moments
from test_federated import OPTIONS, Unreliable, _draws, tables
from test_federated_lines import Lying

import bnnzoo
from bnnzoo.api import keywords
from bnnzoo.data import load
from bnnzoo.errors import BnnzooError, UsageError
from bnnzoo.posterior.backend import arithmetic

PUBLIC = (np.array([[-3.0, -3.0], [3.0, 3.0]], np.float32), np.array([-4.0, 4.0], np.float32))
PRIVACY = Privacy(2.0, 1e-5, 0.2)
ROWS = tables()[0]


def private(folder: Path, *, releases: int = 200, data: Any = ROWS, privacy: Privacy = PRIVACY, **more: Any) -> Party:
    """Return a private party whose noise allows this number of releases."""
    smallest = 2 * privacy.clip * releases**0.5 / mu_within(privacy.epsilon, privacy.delta)
    more = {"noise_sd": 1.00001 * smallest, **more}
    return Party(data, folder, privacy=privacy, public=PUBLIC, **more)


def agree(party: Party, **options: Any) -> Agreement:
    """Agree with a party on the line, and return the agreement."""
    lengths = {"chains": 1, "warmup": 0, "draws": 1}
    recipe = keywords.recipe_of("linear", "penalty", data=None, in_memory=True, **{**OPTIONS, **lengths, **options})
    with arithmetic("float32"):
        return Coordinator({"a": party})._agree(recipe, None)[1]["a"]


def ask(party: Party, agreement: Agreement, step: int, chains: int = 1, there: float = 0.1) -> Any:
    """Return the answer of a party to `sums`, or the reason of its refusal."""
    here = np.zeros((chains, 3), np.float32)
    answer = party.answer("sums", Request(agreement.name, step, (1, 2), here, here + np.float32(there)).words())
    return answer.get("sums") or answer["refused"]


# ---- what is sent --------------------------------------------------------------------------------


def test_an_offer_depends_on_the_number_of_rows_but_not_on_their_values(tmp_path):
    other = (1000 * ROWS[0] + 7, -ROWS[1])
    offers = [private(tmp_path / str(i), data=data).answer("offer", {}) for i, data in enumerate((ROWS, other))]
    fingerprints = [offer.pop("fingerprint") for offer in offers]
    assert offers[0] == offers[1]
    assert fingerprints[0] != fingerprints[1]
    public = load(PUBLIC)
    scaled = {name: (np.array(values) * 30).tolist() for name, values in moments(public).items()}
    assert {name: offers[0][name] for name in scaled} == scaled
    assert offers[0]["batch_size"] == offers[0]["rows"] == 60
    # Positive control: the offer of a party without differential privacy has the sums of its rows.
    plain = [Party(data, tmp_path / f"plain-{i}", batch_size=9) for i, data in enumerate((ROWS, other))]
    assert plain[0].answer("offer", {})["x_sum"] != plain[1].answer("offer", {})["x_sum"]


def test_an_agreement_does_not_tell_whether_the_rows_suit_the_model(tmp_path):
    """Counts cannot be negative. The coordinator gets the usual answer, and the party's log has the reason."""
    party = private(tmp_path / "a", data=(ROWS[0], np.full(60, -1.0, np.float32)))
    agreement = agree(party, likelihood={"name": "poisson"}, prior={"name": "normal"})
    *_, last = read_log(tmp_path / "a")
    assert set(last["sent"]) == {"agreed", "releases"}
    assert last["kept"].startswith("UsageError")
    ((answer,),) = ask(party, agreement, 0)
    assert abs(answer) < 8 * party._terms.noise_sd  # each difference is 0, so only the noise is left


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e38, 3e38])
def test_sums_are_finite_at_any_position(value, tmp_path):
    party = private(tmp_path / "a")
    ((answer,),) = ask(party, agree(party), 0, there=value)
    assert abs(answer) < 60 * PRIVACY.clip + 8 * party._terms.noise_sd


def test_sums_are_the_clipped_differences_of_all_rows_plus_noise(tmp_path):
    """Two clips: without effect, and so small that each row adds its sign."""
    x, y = (values.astype(float) for values in ROWS)
    at_there = -((y - x @ [0.1, 0.1] - 0.1) ** 2) / 2 / 0.25
    differences = at_there + y**2 / 2 / 0.25
    for name, clip in (("wide", 50.0), ("narrow", 0.01)):
        privacy = PRIVACY._replace(epsilon=1e12, clip=clip)
        party = private(tmp_path / name, privacy=privacy, noise_sd=1e-3)
        ((answer,),) = ask(party, agree(party), 0)
        assert answer == pytest.approx(np.clip(differences, -clip, clip).sum(), abs=0.02)
        *_, last = read_log(tmp_path / name)
        assert last["charge"]["clipped"] == [np.sum(np.abs(differences) > clip)]


# ---- the account ---------------------------------------------------------------------------------


def test_a_spent_account_refuses_also_after_a_restart(tmp_path):
    party = private(tmp_path / "a", releases=10)
    assert party.releases_left == 10
    agreement = agree(party)
    first = ask(party, agreement, 0, chains=4)
    assert isinstance(ask(party, agreement, 1, chains=5), list)
    refusal = (
        "sums: the limits of differential privacy, epsilon 2 and delta 1e-05, are reached; 1 releases are left and 2 "
        "are needed; ask the party for a larger epsilon"
    )
    for restarted in (party, private(tmp_path / "a", releases=10)):
        assert restarted.releases_left == 1
        agree(restarted)
        assert ask(restarted, agreement, 2, chains=2) == refusal
    assert isinstance(ask(restarted, agreement, 3), list)
    assert ask(restarted, agreement, 4).endswith(
        "0 releases are left and 1 are needed; ask the party for a larger epsilon"
    )
    assert restarted.answer("clipped", {"agreement": agreement.name, "first": 0}) == {"fraction": None}
    assert ask(restarted, agreement, 0, chains=4) == first


def test_a_repeated_request_gets_the_logged_answer_at_no_cost(tmp_path):
    """Also from another process and with another secret, whose noise for a new request differs."""
    party = private(tmp_path / "a")
    agreement = agree(party)
    answer = ask(party, agreement, 5)
    left = party.releases_left
    assert left == 199
    second = private(tmp_path / "a")
    agree(second)
    assert ask(second, agreement, 5) == ask(party, agreement, 5) == answer
    assert second.releases_left == left
    assert ask(second, agreement, 6) != answer
    # The first process sees the answer of the second one in the log.
    assert ask(party, agreement, 7) != answer
    assert party.releases_left == left - 2
    assert ask(party, agreement, 6) == ask(second, agreement, 6)


def test_answers_before_a_change_of_the_options_count(tmp_path):
    """mu^2 of all answers adds up: 100 releases with twice the noise cost as much as 25."""
    party = private(tmp_path / "a", releases=400)
    ask(party, agree(party), 0, chains=100)
    coarse = private(tmp_path / "a", releases=100)
    assert coarse.releases_left == 75
    assert private(tmp_path / "a", releases=100, data=(ROWS[0] + 1, ROWS[1])).releases_left == 75
    assert private(tmp_path / "a", privacy=PRIVACY._replace(epsilon=0.1)).releases_left == 0
    assert private(tmp_path / "a", privacy=PRIVACY._replace(epsilon=9.0)).releases_left in range(190, 200)


def test_noise_depends_on_everything_that_is_agreed(tmp_path):
    """Otherwise two models with the same noise would reveal the difference of their sums."""
    party = private(tmp_path / "a")
    nothing_moves = [ask(party, agree(party, seed=seed), 0, there=0.0) for seed in (1, 2)]
    assert nothing_moves[0] != nothing_moves[1]
    assert len(agree(party).name) == 64


def test_a_folder_with_an_account_is_not_used_without_it(tmp_path):
    private(tmp_path / "a")
    with pytest.raises(UsageError, match=r"a: the party has answered under differential privacy; give its epsilon"):
        Party(ROWS, tmp_path / "a", batch_size=9)
    log = tmp_path / "a" / "sent.jsonl"
    log.write_bytes(b"{}\n")
    with pytest.raises(UsageError, match=r"line 1 is damaged, so the cost of the answers is uncertain; restore"):
        private(tmp_path / "a")
    log.unlink()
    with pytest.raises(UsageError, match=r"sent.jsonl: missing, so the cost of the answers is unknown; restore the"):
        private(tmp_path / "a")


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_folder_with_answers_without_privacy_gets_no_account(tmp_path):
    """The exact sums have already been sent, so no limit can hold. Offers alone contain exact sums too."""
    for name, question in (("a", "sums"), ("b", "offer")):
        party = Party(ROWS, tmp_path / name, batch_size=9)
        party.answer("offer", {})
        if question == "sums":
            run_with({name: party}, tmp_path / "run.nc")
            log = tmp_path / name / "sent.jsonl"
            log.write_text("".join(log.read_text().splitlines(keepends=True)[1:]))
        with pytest.raises(UsageError, match=r"sent.jsonl: line \d+: is an answer without differential privacy, so"):
            private(tmp_path / name)
        assert not (tmp_path / name / "privacy.json").exists()
    # Positive control: refusals and unknown agreements have no sums.
    refusing = Party(ROWS, tmp_path / "c", batch_size=9)
    assert "refused" in refusing.answer("agree", {})
    assert private(tmp_path / "c").releases_left == 200


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"privacy": PRIVACY._replace(epsilon=0.0)}, r"epsilon: must be > 0 \(got 0.0\)"),
        ({"privacy": PRIVACY._replace(epsilon=np.inf)}, r"epsilon: must be > 0 \(got inf\)"),
        ({"privacy": PRIVACY._replace(delta=1.0)}, r"delta: must be between 0 and 1 \(got 1.0\)"),
        ({"privacy": PRIVACY._replace(clip=-1.0)}, r"clip: must be > 0 \(got -1.0\)"),
        ({"noise_sd": 0.0}, r"noise_sd: must be > 0 for differential privacy \(got 0.0\)"),
        ({"noise_sd": 0.01}, r"clip: too large: epsilon 2 and delta 1e-05 allow no answer \(got 0.2\); use a smaller"),
        ({"batch_size": 20}, "batch_size: conflicts with differential privacy, which uses all rows; remove it"),
        ({"sampling": "disjoint"}, "sampling: conflicts with differential privacy, which uses all rows; remove it"),
        ({"public": None}, "public: missing; give a table with the same columns"),
        ({"privacy": None}, "public: requires epsilon, delta and clip; add them"),
        ({"privacy": None, "public": None}, "batch_size: missing; add it, or use differential privacy"),
        ({"data": (ROWS[0][:1], ROWS[1][:1])}, r"data: must have at least 2 rows \(got 1\)"),
        ({"data": (ROWS[0][:, :1], ROWS[1])}, "x"),
    ],
)
def test_options_that_contradict_each_other_are_refused(more, message, tmp_path):
    settings = {"data": ROWS, "privacy": PRIVACY, "public": PUBLIC, "noise_sd": 3.0}
    with pytest.raises(UsageError, match=message):
        Party(folder=tmp_path / "a", **{**settings, **more})
    assert not (tmp_path / "a" / "privacy.json").exists()


# ---- a run ---------------------------------------------------------------------------------------

LENGTHS: dict[str, Any] = {"chains": 2, "warmup": 20, "draws": 20, "seed": 4}


def run_with(parties: Any, out: Path, **more: Any) -> bnnzoo.Run:
    return Coordinator(parties).sample("linear", out=out, **{**LENGTHS, **OPTIONS, **more})


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_run_states_the_promise_and_is_repeated_at_no_cost(tmp_path):
    """A private party and one without privacy; the private one is killed and restarted during the second run."""
    plain = Party(tables()[2], tmp_path / "b", batch_size=30)
    make = lambda: private(tmp_path / "a", releases=90)  # noqa: E731
    first = run_with({"a": make(), "b": plain}, tmp_path / "1.nc")
    assert make().releases_left == 90 - 2 * 40 - 1
    about = json.loads(first.attributes["federated"])
    sd = make()._terms.noise_sd / (2 * 0.2 * 60)
    clipped = json.loads(first.attributes["clipped"])["a"]["fraction"]
    assert json.loads(first.attributes["clipped"]) == {"a": {"fraction": clipped, "sd": sd}}
    assert about["a"] == {
        **{"rows": 60, "used": 60, "disjoint": True, "noise_sd": make()._terms.noise_sd},
        **{"fingerprint": make()._terms.fingerprint},
        **{"epsilon": 2.0, "delta": 1e-5, "clip": 0.2, "neighbours": "one row replaced"},
    }
    counts = [
        line["charge"]["clipped"]
        for line in read_log(tmp_path / "a")
        if line["question"] == "sums" and line["step"] >= 20
    ]
    assert 0 < abs(clipped - np.mean(counts) / 60) < 5 * sd
    assert set(about["b"]) == {"rows", "used", "disjoint", "noise_sd", "fingerprint"}
    assert first.summary()["privacy"] == {"a": "epsilon 2.0, delta 1e-05, one row replaced"}
    assert bnnzoo.open(tmp_path / "1.nc").summary()["privacy"] == first.summary()["privacy"]
    line = Unreliable(make, {5: "killed", 20: "late", 44: "killed"})
    second = run_with({"a": line, "b": plain}, tmp_path / "2.nc")
    assert np.array_equal(_draws(first), _draws(second))
    assert second.attributes["clipped"] == first.attributes["clipped"]
    assert make().releases_left == 9
    text = show_log(tmp_path / "a")
    assert re.search(r"privacy: 81 releases spent epsilon 1\.\d+ of 2, at delta 1e-05 \(one row replaced\)", text)
    assert re.search(r"clipped \(confidential\): \d+\.?\d* % of the differences", text)
    assert "privacy" not in show_log(tmp_path / "b")
    assert "privacy" not in run_with({"b": plain}, tmp_path / "3.nc").summary()


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_another_run_with_the_same_recipe_is_not_promised_free_releases(tmp_path):
    """Other initial positions and other terms of another party change the requests, so the answers are charged."""
    lengths = {"warmup": 5, "draws": 5}
    private_party, other = private(tmp_path / "a", releases=30), Party(tables()[2], tmp_path / "b", batch_size=30)
    starts = np.zeros((2, 3), np.float32)
    run_with({"a": private_party, "b": other}, tmp_path / "1.nc", starts=starts, **lengths)
    assert private_party.releases_left == 9
    run_with({"a": private_party, "b": other}, tmp_path / "2.nc", starts=starts, **lengths)  # repeated at no cost
    more_rows = Party(tables()[2], tmp_path / "b", batch_size=40)
    for second, more in ((other, {"starts": starts + 1}), (other, {}), (more_rows, {"starts": starts})):
        with pytest.raises(UsageError, match="allows 9 releases, and this run needs 21"):
            run_with({"a": private_party, "b": second}, tmp_path / "3.nc", **lengths, **more)
    assert private_party.releases_left == 9


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_runs_are_joined_only_if_the_parties_have_the_same_rows(tmp_path):
    """The fraction of clipped differences of a private party has other noise in each run."""
    lengths = {"warmup": 0, "draws": 4}
    parties = {"a": private(tmp_path / "a", releases=40), "b": Party(tables()[2], tmp_path / "b", batch_size=30)}
    first, second = (run_with(parties, tmp_path / f"{seed}.nc", **{**lengths, "seed": seed}) for seed in (1, 2))
    assert first.attributes["clipped"] != second.attributes["clipped"]
    joined = bnnzoo.concat([first, second])
    assert joined.posterior["posterior"].sizes["chain"] == 4
    assert not {"clipped", "asked_again"} & joined.attributes.keys()
    x, y = tables()[2]
    parties["b"] = Party((x, y[::-1]), tmp_path / "b", batch_size=30)
    other = run_with(parties, tmp_path / "3.nc", **{**lengths, "seed": 3})
    message = r"3\.nc: its training rows differ from those of .*1\.nc; join only runs with the same parties"
    with pytest.raises(UsageError, match=message):
        bnnzoo.concat([first, other])


def test_a_run_that_needs_too_many_releases_is_refused_before_it_costs_anything(tmp_path):
    party = private(tmp_path / "a", releases=80)
    with pytest.raises(
        UsageError, match=r"^party a: its differential privacy allows 80 releases, and this run needs 81"
    ):
        run_with({"a": party}, tmp_path / "run.nc")
    assert party.releases_left == 80


@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_a_party_that_cannot_send_its_clipped_fraction_is_a_finding(tmp_path):
    """Another run spends the releases in the meantime."""
    parties = [private(tmp_path / "a", releases=81) for _ in range(2)]
    agreement = agree(parties[1])

    def spend(answer: Any) -> Any:
        if not steps:
            ask(parties[1], agreement, 0)
        steps.append(1)
        return answer

    steps: list[int] = []
    run = run_with({"a": Lying(parties[0], "sums", spend)}, tmp_path / "run.nc")
    clipped = json.loads(run.attributes["clipped"])["a"]
    assert (clipped["fraction"], run.attributes["complete"], run.attributes["regime_ok"]) == (None, 1, 0)
    assert "fraction of clipped differences of party a is not a number" in run.attributes["regime"]


def test_the_guard_tests_the_clipped_fraction_beyond_its_noise():
    means = {"sigma2": 1.0, "regime_dof": 0.0, "skew_bias": 0.0, "acceptance_rate": 0.5}
    means = {name: np.array([value]) for name, value in means.items()}
    limit = guard.MAX_CLIPPED
    for fraction, sd, is_problem in (
        *((limit, 0.0, False), (1.01 * limit, 0.0, True)),
        *((limit + 0.019, 0.01, False), (limit + 0.021, 0.01, True)),
        (float("nan"), 0.0, True),
    ):
        problems = guard.findings(means, 0.0, {"a": guard.Clipped(0.0, 0.1), "b": guard.Clipped(fraction, sd)})
        assert [problem.kind for problem in problems] == ["clipped"] * is_problem
        assert all("party b" in problem.label for problem in problems)


@pytest.mark.parametrize(
    ("question", "change", "message"),
    [
        ("offer", {"epsilon": None}, "epsilon, delta, clip: invalid values in the offer"),
        ("offer", {"delta": 1.0}, "epsilon, delta, clip: invalid"),
        ("offer", {"clip": float("nan")}, "epsilon, delta, clip: invalid"),
        ("offer", {"noise_sd": 0.0}, "epsilon, delta, clip: invalid"),
        ("offer", {"batch_size": 20}, "epsilon, delta, clip: invalid"),
        ("agree", {"releases": None}, "releases: must be a whole number"),
        ("sums", {"sums": [[1.0, 1.0, 1.0]] * 2}, "sums: must be 2 x 1 numbers"),
        ("clipped", {"fraction": "0"}, "fraction: must be a number"),
        ("clipped", {"more": 0}, "must contain exactly fraction"),
    ],
)
@pytest.mark.filterwarnings("ignore::bnnzoo.BnnzooWarning")
def test_an_invalid_reply_of_a_private_party_is_refused(question, change, message, tmp_path):
    line = Lying(private(tmp_path / "a"), question, lambda answer: {**answer, **change})
    with pytest.raises(BnnzooError, match=f"^party a: invalid reply to {question}: {message}"):
        run_with({"a": line}, tmp_path / "run.nc", draws=1)


def test_a_party_without_privacy_has_no_clipped_fraction(tmp_path):
    answer = Party(ROWS, tmp_path / "a", batch_size=9).answer("clipped", {"agreement": "x", "first": 0})
    assert answer == {"refused": "clipped: this party has no differential privacy, so it clips no differences"}
