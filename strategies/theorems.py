"""Settings of the four papers' theorems, one function per theorem.

    Lambda    upper bound on the largest singular value of V* / sqrt(n), V* the true heads (n, k)
    lambda_   lower bound on the smallest one
    Gamma     bound on the norm of a true head
    R         standard deviation of the label noise

Constants that a paper leaves open are 1, and factors that it hides in O-tilde are left out; with
`proof: true` those that its proofs print are put in. Each function also says which assumptions the
problem violates even so. Every function is checked against values computed by hand
(tests/strategies/test_theorems.py).
"""

from __future__ import annotations

import math
from typing import Annotated

from privfed.algorithm.theory import Problem, Theory
from privfed.foundation.constraints import FLAG
from privfed.foundation.errors import ConfigError

Given = float | None
EXPLICIT = 6.0
"""Decimal logarithm of the largest cover that can be listed."""


def needs(what: str, least: float, there: float) -> list[str]:
    """Return an assumption in words if it is violated."""
    return [] if there >= least else [f"{what} must be at least {least:.3g} and is {there:.3g}"]


def pmpr(
    problem: Problem,
    Lambda: Given,
    lambda_: Given,
    Gamma: Given,
    R: Given,
    proof: Annotated[bool, FLAG],
) -> Theory:
    """Return PMPR Theorem 10's settings of Private FedRep, with Lemma 12's of its initialiser.

    eta = 1 / (2 Lambda^2), T = (Lambda / lambda)^2 ln n^3, b = floor(m / 2T),
    psi = (R + Gamma) Gamma sqrt(d k), times 82 ln(n b) in the proof of Lemma 7,
    psi_init = (R^2 + Gamma^2) d, times ln(m n)^2 ln(d m n) in the proof of Lemma 12.
    """
    n, m, d, k = problem.n, problem.m, problem.d, problem.k
    Lambda, lambda_ = problem.constant("Lambda", Lambda), problem.constant("lambda_", lambda_)
    Gamma, R = problem.constant("Gamma", Gamma), problem.constant("R", R)
    gamma = Lambda / lambda_
    T = math.ceil(gamma**2 * math.log(n**3))
    b = m // (2 * T)
    psi, psi_init = (R + Gamma) * Gamma * math.sqrt(d * k), (R**2 + Gamma**2) * d
    if proof:
        psi *= 82 * math.log(n * max(1, b))
        psi_init *= math.log(m * n) ** 2 * math.log(d * m * n)
    fresh = b >= 2
    violated = []
    if not fresh:
        violated.append(
            f"b = floor(m/2T) is {b}: two fresh batches in each of T={T} rounds need m={4 * T} "
            "examples, so batches of 1 are redrawn"
        )
    c, logs = max(R, 1.0) ** 2 * max(Gamma, 1.0) ** 2, math.log(n) ** 2
    least = (c * gamma**4 * k * logs / Lambda**2 + R**2 * k / Gamma**2 * math.log(n * m)) * T
    violated += needs("m (Assumption 31)", least, m)
    Delta = max(1.0, math.sqrt(problem.log_delta) / problem.epsilon)
    first = Delta * (R + Gamma) * Gamma * d * math.sqrt(k) * math.log(n * m) ** 2 / lambda_**2
    second = R**2 * Gamma**2 * d * math.log(n * m) / m
    violated += needs("n (Assumption 32)", (first + second) * T, n)
    settings = {
        "algo.eta": 1.0 / (2.0 * Lambda**2),
        "rounds": T,
        "algo.clip": psi,
        "init.clip": psi_init,
        "algo.batches": "fresh" if fresh else "redrawn",
        "algo.head_batch": None if fresh else 1,
        "algo.batch": None if fresh else 1,
    }
    return Theory("PMPR Theorem 10", settings, tuple(violated))


def pmpr_margin(
    problem: Problem,
    rho: Given,
    Gamma: Given,
    radius: Given,
    beta: float,
    proof: Annotated[bool, FLAG],
) -> Theory:
    """Return PMPR Theorem 17's settings of margin classification in a sketch.

    k' = r^2 Gamma^2 ln(n m / beta) / rho^2 and gamma = rho / (2 (sqrt(2) + 1) Gamma), half of
    Lemma 16's limit. `proof` changes nothing: no constant is printed.
    """
    n, m, k = problem.n, problem.m, problem.k
    rho, Gamma = problem.constant("rho", rho), problem.constant("Gamma", Gamma)
    r = problem.constant("radius", radius)
    sketch = max(k, math.ceil(r**2 * Gamma**2 * math.log(n * m / beta) / rho**2))
    gamma = rho / (2 * (math.sqrt(2) + 1) * Gamma)
    size = sketch * k * math.log10(math.sqrt(k) / gamma)
    violated = _cover(size, "Lemma 16")
    own = math.sqrt(r**2 * Gamma**2 / (m * rho**2))
    if own >= 1:
        violated.append(f"the bound has a term sqrt(r^2 Gamma^2 / (m rho^2)) = {own:.3g}, above 1")
    settings = {"algo.sketch": sketch, "algo.gamma": gamma, "algo.rho": rho, "algo.Gamma": Gamma}
    return Theory("PMPR Theorem 17", settings, tuple(violated))


def dpmp(
    problem: Problem,
    Lambda: Given,
    lambda_: Given,
    Gamma: Given,
    R: Given,
    proof: Annotated[bool, FLAG],
) -> Theory:
    """Return DPMP Lemma 4.4's bounds of Priv-AltMin, with Lemma 4.6's of its initialiser.

    Gamma = mu sqrt(k lambda_k) bounds the heads. zeta = (Gamma + R) sqrt(2 ln(4 n m / beta)) with
    beta = 1/n (Lemma B.1), eta_c = Gamma sqrt(d), times the same root with `proof`.
    """
    n, m, d, k = problem.n, problem.m, problem.d, problem.k
    lambda_k = problem.constant("lambda_", lambda_) ** 2
    Gamma, R = problem.constant("Gamma", Gamma), problem.constant("R", R)
    root = math.sqrt(2 * math.log(4.0 * n * n * m))
    zeta, eta_c = (Gamma + R) * root, Gamma * math.sqrt(d) * (root if proof else 1.0)
    NSR, mu2 = R**2 / lambda_k, Gamma**2 / (k * lambda_k)
    violated = needs("m (Lemma B.4)", (1 + NSR) * k + k**2, m)
    violated += needs("m n (Lemma B.5)", mu2 * d * k**2, m * n)
    Delta = 0.0 if math.isinf(problem.epsilon) else math.sqrt(8 * problem.log_delta)
    Delta /= problem.epsilon
    noise = (math.sqrt(k) * eta_c**2 + eta_c * zeta) * Delta * math.sqrt(d * k) / (n * lambda_k)
    if noise >= 1:
        violated.append(f"the noise of one iteration (Lemma B.7) is {noise:.3g}, not below 1")
    if problem.known.get("gaussian") == 0:
        violated.append("features are not Gaussian")
    settings = {
        "algo.eta_c": eta_c,
        "algo.zeta": zeta,
        "algo.clip.moments": eta_c**2,
        "algo.clip.products": eta_c * zeta,
        "init.zeta": zeta,
        "init.clip": zeta**2,
    }
    return Theory("DPMP Lemma 4.4", settings, tuple(violated))


def dpmp_select(problem: Problem, Gamma: Given, proof: Annotated[bool, FLAG]) -> Theory:
    """Return DPMP Theorem 5.2's settings of the exponential mechanism.

    L_f = sqrt(d) ln(n m), phi = 1 / (epsilon n) for the net, C = Gamma.
    """
    n, m, d, k = problem.n, problem.m, problem.d, problem.k
    if math.isinf(problem.epsilon):
        raise ConfigError.of("eps", "inf", "DPMP Theorem 5.2's net has radius 1 / (eps n)")
    Gamma = problem.constant("Gamma", Gamma)
    phi = 1.0 / (problem.epsilon * n)
    violated = _cover((2 * d + 1) * k * math.log10(9 * math.sqrt(k) / phi), "Theorem 5.2")
    settings = {"algo.L_f": math.sqrt(d) * math.log(n * m), "algo.gamma": phi, "algo.C": Gamma}
    return Theory("DPMP Theorem 5.2", settings, tuple(violated))


def _cover(size: float, where: str) -> list[str]:
    """Return in words that a cover cannot be listed; `size` is its decimal logarithm."""
    if size <= EXPLICIT:
        return []
    return [
        f"the cover of {where} has 10^{size:.0f} members; public random candidates stand in for "
        "it, about which it promises nothing"
    ]


def centaur(
    problem: Problem,
    Lambda: Given,
    lambda_: Given,
    Gamma: Given,
    R: Given,
    proof: Annotated[bool, FLAG],
) -> Theory:
    """Return CENTAUR Theorem 5.1's settings, with Lemmas F.1 and F.3's of its initialiser.

    s_1 = Lambda, s_k = lambda, kappa = s_1 / s_k, mu sqrt(k) s_k = Gamma. eta_g = 1 / (4 s_1^2),
    zeta_g = Gamma^2 sqrt(d k ln n), T_g = kappa^2 ln( n / (kappa eta_g zeta_g sigma_g d) ), whose
    logarithm the theorem prints with the inverse argument; sigma_g = 2 sqrt(T_g) / mu for the
    rounds' share of the budget. `proof` multiplies T_g by 16 / E_0 (recursion (22)). The
    initialiser: eps_i = .01, L = (s_k^2 + sum_j s_j^2) / s_k^2 ln(k d / eps_i), with k s_1^2 for
    the sum, T_0 = 8 p k ln n with p = .99, zeta_0 = Gamma^2 sqrt(k d) ln n (sqrt(ln n) + sqrt(k)).
    """
    n, m, d, k = problem.n, problem.m, problem.d, problem.k
    s_1, s_k = problem.constant("Lambda", Lambda), problem.constant("lambda_", lambda_)
    Gamma, R = problem.constant("Gamma", Gamma), problem.constant("R", R)
    kappa, mu2, ln = s_1 / s_k, Gamma**2 / (k * s_k**2), math.log(n)
    eta, zeta = 1.0 / (4 * s_1**2), Gamma**2 * math.sqrt(d * k * ln)
    scale = 16 / math.sqrt(1 - 0.2**2) if proof else 1.0
    T, sigma = 1, 0.0
    for _ in range(50):  # T_g and sigma_g determine each other
        sigma = 2 * math.sqrt(T) / problem.mu
        reach = 1.0 / n if sigma == 0 else kappa * eta * zeta * sigma * d / n
        T = max(1, math.ceil(scale * kappa**2 * math.log(1.0 / reach))) if reach < 1 else 1
    violated = needs("d (Theorem 5.1)", kappa**8 * k**3 * ln, d)
    violated += needs("half of m (batches)", max(kappa**2 * k**2 * ln, k**2 * d / n), m // 2)
    violated += needs("m (Assumption 5.3)", max(k**2, k**4 * d / n), m)
    violated += needs("n (n >= m)", m, n)
    most = n * kappa**4 / (mu2 * d * math.sqrt(k * ln))
    if sigma > most:
        violated.append(f"sigma_g must be at most {most:.3g} and is {sigma:.3g}")
    if R > 0:
        violated.append(f"labels have noise {R:g}, and the theorem's have none")
    settings = {
        "algo.eta": eta,
        "algo.clip": zeta,
        "rounds": T,
        "init.agreement": 0.01,
        "init.iterations": math.ceil((s_k**2 + k * s_1**2) / s_k**2 * math.log(k * d / 0.01)),
        "init.copies": math.ceil(8 * 0.99 * k * ln),
        "init.clip": Gamma**2 * math.sqrt(k * d) * ln * (math.sqrt(ln) + math.sqrt(k)),
    }
    return Theory("CENTAUR Theorem 5.1", settings, tuple(violated))


def rgrad(
    problem: Problem,
    sigma_1: Given,
    sigma_r: Given,
    sigma_xi: Given,
    C_l: Given,
    C_u: Given,
    d1: Given,
    d2: Given,
    proof: Annotated[bool, FLAG],
) -> Theory:
    """Return RGRAD Theorem 3's settings, with Theorem 1's and Corollary 1's of its initialiser.

    l* = ln n steps of size eta = 1/2, which is between 0 and 1. Sensitivities are those of
    `algo.calibration=paper`.
    """
    n, r, eta = problem.n, problem.k, 0.5
    one, low = problem.constant("sigma_1", sigma_1), problem.constant("sigma_r", sigma_r)
    xi = problem.constant("sigma_xi", sigma_xi)
    C_l, C_u = problem.constant("C_l", C_l), problem.constant("C_u", C_u)
    rows, columns = problem.constant("d1", d1), problem.constant("d2", d2)
    both, larger, ln = rows + columns, max(rows, columns), math.log(n)
    kappa, kappa_xi, eps = one / low, xi / low, problem.epsilon
    scale = (math.sqrt(C_u * r) * one + xi) / low
    start = math.sqrt(math.log(3.75) + problem.log_delta) / eps
    step = math.sqrt(math.log(1.25 * ln) + problem.log_delta) / eps
    sizes = {
        "Theorem 1": r * scale**2 * larger * math.log(both) / C_l,
        "Corollary 1, n_1": scale**2 * kappa**2 * r * larger * math.log(both) / C_l,
        "Corollary 1, n_2": scale
        / math.sqrt(C_l)
        * (kappa * r * math.sqrt(larger) + r**1.5)
        * ln
        * start,
        "Theorem 3, n_3": r * both,
        "Theorem 3, n_4": eta**2 * kappa_xi**2 * C_u * r * both * math.log(both),
        "Theorem 3, n_5": eta
        * math.sqrt(C_u)
        * (kappa_xi + math.sqrt(C_u))
        * r
        * both
        * ln**1.5
        * step,
    }
    violated = [words for name, least in sizes.items() for words in needs(f"n ({name})", least, n)]
    violated += needs("d1 + d2 (log n)", ln, both)
    return Theory("RGRAD Theorem 3", {"rounds": math.ceil(ln), "algo.step": eta}, tuple(violated))
