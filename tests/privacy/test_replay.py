"""Every claim of every algorithm, tested on neighbouring data: strange users, searches, liars."""

from __future__ import annotations

import pytest
from bugs import BUGS

from privfed.audit.replay_checks import replay
from privfed.commands.replay import main
from privfed.config.composition import compose
from privfed.config.option_groups import options

TINY = ("data.n=200", "data.d=5", "data.m=6", "rounds=2", "eps=4")
SIZES = {
    "expmech": ("algo.candidates=20",),
    "jlmargin": ("algo.candidates=20", "algo.sketch=4"),
    "rgrad": ("data.d1=2", "data.d2=3", "data.m=2"),
}
IMAGES = (
    "data.n=24",
    "data.m=4",
    "data.size=4",
    "data.classes=4",
    "rounds=2",
    "eps=4",
    "algo.clip=0.05",
)
MLP = (*IMAGES, "model.module.hidden=[6,4]")
LENET = (
    *(setting for setting in IMAGES if not setting.startswith(("data.size", "data.n="))),
    "data.size=16",
    "data.n=8",
    "model=lenet",
    "model.module.channels=[2,2]",
    "model.module.hidden=[4]",
)
NETWORKS = ("fedavg_ft", "ppsgd", "pmtl_ft", "network/centaur", "network/standalone")
AUTO = ("privacy.clip=auto", "eps=100")
"""With so little noise the private clip norms are of the data's size, even with few users."""
VARIANTS = {
    "fedrep, two batches": ("algo.estimator=two-batches", "algo.train=s0", "data.m=8"),
    "fedrep, fresh batches": ("algo.estimator=two-batches", "algo.batches=fresh", "data.m=8"),
    "fedrep, auto": AUTO,
    "fedrep, auto, zero-out": (*AUTO, "neighbouring=zero-out"),
    "fedrep, nothing clipped": ("algo.clip=100", "init.clip=100"),
    "fedrep, pairs": ("init=pairs", "neighbouring=zero-out"),
    "fedrep, automatic start": ("init=auto", "force=true"),
    "fedrep, few users": ("algo.estimator=posterior", "init=cascade", "force=true"),
    "fedrep, few users, zero-out, many rows": (
        "algo.estimator=posterior",
        "init=cascade",
        "force=true",
        "neighbouring=zero-out",
        "data.m=8",
        "algo.train=s0",
    ),
    "fedrep, judged": ("algo.safety=true",),
    "altmin, judged, zero-out": ("algo=altmin", "algo.safety=true", "neighbouring=zero-out"),
    "centaur, cascade": ("algo=centaur", "init=cascade"),
    "altmin, cascade": ("algo=altmin", "init=cascade"),
    "fedrep, random start, exact noise": ("init=random", "privacy.noise=discrete"),
    "fedrep, power method in batches": (
        "init=ppm",
        "init.iterations=2",
        "init.batch=2",
        "init.centre=false",
    ),
    "altmin, pairs, auto": ("algo=altmin", "init=pairs", *AUTO),
    "altmin, halves": (
        "algo=altmin",
        "algo.estimator=halves",
        "algo.target=labels",
        "algo.eta_c=1",
        "algo.zeta=1",
        "algo.clip.moments=0.3",
        "algo.clip.products=0.3",
    ),
    "expmech, absolute": (
        "algo=expmech",
        "algo.targets=absolute",
        "algo.train=s0",
        "algo.candidates=20",
    ),
    "rgrad, weak": ("algo=rgrad", "neighbouring=weak", "data.d1=2", "data.d2=3", "data.m=1"),
    "centaur, network": ("algo=network/centaur", "model=mlp", *MLP),
    "centaur, network, zero-out": (
        "algo=network/centaur",
        "model=mlp",
        *MLP,
        "neighbouring=zero-out",
    ),
    "centaur, network, auto": ("algo=network/centaur", "model=mlp", *MLP, *AUTO),
    "centaur, batches, augmented": (
        "algo=network/centaur",
        "model=mlp",
        *MLP,
        "algo.batch=2",
        "algo.augment=always",
    ),
    "centaur, LeNet": ("algo=network/centaur", *LENET),
    "fedavg_ft, LeNet, zero-out": ("algo=fedavg_ft", *LENET, "neighbouring=zero-out"),
    "fedavg_ft, sampled": ("algo=fedavg_ft", *MLP, "algo.sampling=0.5", "eps=1", "seed=1"),
    "ppsgd, sampled, zero-out": (
        "algo=ppsgd",
        *MLP,
        "algo.sampling=0.5",
        "neighbouring=zero-out",
        "eps=1",
        "seed=1",
    ),
    "ppsgd, averaged": ("algo=ppsgd", *MLP, "algo.average=0.6", "algo.server_momentum=0.9"),
    "rgrad, known covariances": (
        "algo=rgrad",
        "algo.whiten=true",
        "data.d1=2",
        "data.d2=3",
        "data.m=2",
        "data.C_l=0.5",
        "data.C_u=2",
    ),
    "rgrad, fixed": (
        "algo=rgrad",
        "algo.clip=0.5",
        "init.clip=0.5",
        "data.d1=2",
        "data.d2=3",
        "data.m=3",
        "model.k=1",
    ),
}
PRESETS = {
    "pmpr": ("data.n=24", "data.d=5"),
    "pmpr-altmin": ("data.n=24", "data.d=4", "rounds=2"),
    "pmpr-code": ("data.n=24", "data.d=5", "rounds=2"),
    "pmpr-margin": ("data.n=24", "data.d=5", "data.m=6", "algo.sketch=4", "algo.candidates=20"),
    "theory-pmpr": ("data.n=24", "data.d=5", "rounds=2"),
    "theory-pmpr-margin": ("data.n=24", "data.d=5", "data.m=6", "algo.sketch=4", "algo.net=random"),
    "theory-dpmp": ("data.n=24", "data.d=4", "rounds=2"),
    "theory-dpmp-select": ("data.n=24", "data.d=5", "data.m=6", "algo.candidates=20"),
    "theory-centaur": ("data.n=24", "data.d=5", "rounds=2", "init.copies=2", "init.iterations=2"),
    "theory-rgrad": ("data.n=24", "data.d1=2", "data.d2=3", "rounds=2"),
    "dpmp": ("data.n=24", "data.d=4", "rounds=2"),
    "dpmp-select": ("data.n=24", "data.m=6"),
    "centaur-linear": ("data.n=24", "data.d=5", "rounds=2", "init.copies=2", "init.iterations=2"),
    "rgrad": ("data.n=24", "data.d1=2", "data.d2=3", "rounds=2"),
    "none": ("data.n=24", "data.d=5", "rounds=1"),
    "centaur-cifar10": ("data=patterns", "data.S=3", *LENET),
    "centaur-cifar100": ("data=patterns", "data.S=3", *LENET),
    "centaur-emnist": ("data=patterns", "data.S=3", *MLP),
    "centaur-fashion": ("data=patterns", "data.S=3", *MLP),
}


NEAR = {"select": 0.3, "moments": 0.49}
"""The least share of its sensitivity that is found.

Moments are positive semidefinite, so no two of them are opposite.
"""


def checked(*overrides, tries=60):
    return replay(compose(overrides), tries)


def sizes(algo):
    if algo in ("headboost", "headmean", "features/standalone"):
        return [f"algo={algo}", "data.n=24", "data.m=4", "data.classes=4", "eps=4"]
    if algo in NETWORKS:
        return [f"algo={algo}", *MLP]
    kept = [size for size in TINY if not (algo == "rgrad" and size.startswith("data.d="))]
    return [f"algo={algo}", *kept, *SIZES.get(algo, ())]


@pytest.mark.parametrize("neighbouring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("algo", [name for name in options("algo") if "table/" not in name])
def test_what_every_algorithm_claims_holds(algo, neighbouring):
    report = checked(*sizes(algo), f"neighbouring={neighbouring}")
    assert report.findings == []
    assert bool(report.releases) == (algo.split("/")[-1] not in ("oracle", "standalone"))
    for name, (ratio, who) in report.nearest.items():
        assert NEAR.get(name, 0.5) < ratio <= 1, f"{name}: {who}"
        assert 0.8 < report.lying[name][0] <= 1, (
            "the liars would not notice a sensitivity a little too small"
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_initialisers_estimators_and_private_clip_norms(variant):
    more = VARIANTS[variant]
    images = any(setting.startswith("data.size") for setting in more)
    base = [
        size
        for size in TINY
        if not (any(o.startswith("data.d1") for o in more) and size.startswith("data.d="))
    ]
    base = [] if images else base
    report = checked(*base, *more)
    assert report.findings == [] and report.releases
    assert all(ratio <= 1 for ratio, _ in report.nearest.values())
    assert max(ratio for ratio, _ in report.nearest.values()) > 0.5


@pytest.mark.parametrize("preset", options("preset"))
def test_presets(preset):
    report = checked(f"preset={preset}", *PRESETS[preset], tries=30)
    assert report.findings == [] and report.releases
    assert report.guarantee.startswith("under") == (preset in ("rgrad", "theory-rgrad"))


@pytest.mark.parametrize(
    "bug",
    [
        "halved noise",
        "no clip at the server",
        "psi instead of 2 psi",
        "nodes weighted by reports",
        "noise used again in every round",
    ],
)
@pytest.mark.parametrize("algo", ["expmech", "jlmargin"])
def test_planted_bugs_are_refuted_in_selections(algo, bug):
    with BUGS[bug].plant():
        report = checked(*sizes(algo), tries=120)
    assert BUGS[bug].claim in {finding.claim for finding in report.findings}


def test_the_command_says_what_it_found(capsys):
    arguments = ["data.d=5", "data.m=6", "rounds=1", "--tries", "30"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert (
        "2 releases each, replace-one, guarantee: worst-case" in said
        and "Nothing was found" in said
    )
    with BUGS["divisor of replies"].plant():
        assert main(arguments) == 4
    said, error = capsys.readouterr()
    assert (
        "REFUTED (bypass): what node 'crowd' is told in step 2 (gradient) depends on who answers"
        in said
    )
    assert error == "privfed: what fedrep claims about bypass does not hold\n"
    assert main(["data.n=3"]) == 2 and "at least 6" in capsys.readouterr().err
    assert (
        main(["data=remote", "data.d=3", "data.n=9"]) == 2
        and "simulated" in capsys.readouterr().err
    )
