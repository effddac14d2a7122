"""Documents name files, modules, links and settings that exist."""

from __future__ import annotations

import re

import pytest
from conftest import ROOT

from privfed.config.option_groups import GROUPS, options

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))
FOLDERS = "privfed|strategies|clients|conf|scripts|benchmarks|tests|docs|examples"


def missing_module(dotted: str) -> bool:
    """Whether a dotted name is neither a module nor something that a module mentions."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        base = ROOT.joinpath(*parts[:length])
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if file.exists():
            rest = parts[length:]
            return bool(rest) and not re.search(rf"\b{rest[0]}\b", file.read_text())
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    paths = re.findall(rf"(?<![\w/.-])((?:{FOLDERS})/[\w/.*-]+)", text)
    lost = [p for p in paths if not re.search("[A-Z]{4}", p) and not [*ROOT.glob(p.rstrip("."))]]
    lost += [
        name for name in re.findall(r"(?<![\w/.-])privfed(?:\.\w+)+", text) if missing_module(name)
    ]
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    lost += [link for link in links if not (page.parent / link).exists()]
    assert not lost


PROOFS = (ROOT / "docs/proofs.md").read_text(encoding="utf-8")
CLAIMS = re.split(r"^### ", PROOFS.split("## Claims")[1].split("\n## ")[0], flags=re.M)[1:]


def test_claims_are_numbered_and_every_release_refers_to_them():
    numbers = [int(claim.split(".")[0]) for claim in CLAIMS]
    assert numbers == list(range(1, len(CLAIMS) + 1))
    releases = PROOFS.split("## Releases")[1].split("## Claims")[0]
    rows = [row.strip("|").split("|") for row in releases.splitlines() if row.startswith("| ")]
    for row in rows[1:]:
        named = [int(number) for number in re.findall(r"\d+", row[-1])]
        assert all(number in numbers for number in named), row[0]
    for group in ("algo", "init"):
        missing = set(options(group)) - set(re.findall(rf"`{group}=([\w/]+)`", releases))
        assert not missing, f"{group}: no argument for {missing} in docs/proofs.md"


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.split("\n")[0])
def test_every_claim_names_code_and_tests_that_exist(claim):
    code, tests = (re.findall(rf"^{key}: (.+)$", claim, flags=re.M) for key in ("Code", "Tests"))
    assert len(code) == len(tests) == 1
    assert all((ROOT / path).is_file() for path in re.findall("`([^`]+)`", code[0]))
    for path, name in re.findall("`([^`:]+)::([^`]+)`", tests[0]):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_chooses_can_be_chosen(page):
    text = page.read_text(encoding="utf-8")
    own = set(re.findall(r"mine/algo/(\w+)\.yaml", text)) | {"yours", "shared_model"}
    for group in GROUPS:
        chosen = re.findall(rf"(?<![\w.-]){group}=([a-z][\w/-]*)", text)
        assert set(chosen) <= {*options(group), *own}, group
