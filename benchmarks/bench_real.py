"""A real model, recorded every way that it can be run and in every form that it is released in.

SmolLM2-135M, or another dense decoder: in bf16, in parts, in stages, as replicas, through the paged serving engine,
from files, in FP8, INT4 and as GGUF. What computes the same has to pass against one process in f32; what was quantised
has to fail, and to be described as noise of quantised weights, by `check compare` (terminal's words and page) and by
`check locate`; a fault on top of it has to be named as more than that. Exit code 1: a verdict,
or its words, is not the wanted one.

    python benchmarks/bench_real.py [--release FOLDER] [--folder OUT] [--only REGEX] [--json FILE]

Dumps that OUT holds are taken again, so that a run that was cut short goes on.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TQDM_DISABLE="1", COLUMNS="200")
TEXTS, LENGTHS = ("harbour", "primes", "tides"), (48, 31, 17)
NOISE = "noise of quantised weights"
ONLY_NOISE, MORE = "nothing is wrong beside that", "beside that, and more than noise"


class Case(NamedTuple):
    """One run of a release, and what is to be said of it."""

    name: str
    release: str = "bf16"
    record: tuple[str, ...] = ()
    """Options of `check record`."""
    against: str = "f32"
    """Name of the case that it is compared with."""
    passes: bool = True
    refused: str = ""
    """Part of the reason why it cannot be run."""
    compare: tuple[str, ...] = ()
    """Texts that `check compare` has to say."""
    locate: tuple[str, ...] = ()
    """Texts that `check locate` has to say, against the release in bf16; empty: it is not asked."""
    silent: str = NOISE
    """What neither may say, where the case does not ask for it."""


def quantised(name: str, levels: str, bits: str) -> Case:
    """A release whose weights are rounded and nothing else."""
    return Case(name, name, ("--dtype", "bf16"), "bf16", False, compare=(NOISE, levels),
                locate=(NOISE, bits, ONLY_NOISE))


LEVELS4, BITS4 = "rounded to 16 levels in blocks of 32", "rounded to 4 bits in blocks of 32"
CASES = (
    Case("f32", record=("--dtype", "f32", "--noise", "1"), against=""),
    Case("bf16", record=("--dtype", "bf16")),
    Case("f32, library", record=("--dtype", "f32", "--library")),
    Case("tp=2", record=("--layout", "tp=2", "--dtype", "f32"), refused="9 attention heads"),
    Case("tp=3 f32", record=("--layout", "tp=3", "--dtype", "f32")),
    Case("tp=3 bf16", record=("--layout", "tp=3", "--dtype", "bf16")),
    Case("pp=2", record=("--layout", "pp=2", "--dtype", "f32")),
    Case("pp=3 uneven", record=("--plan", "PLAN", "--dtype", "f32")),
    Case("dp=2", record=("--layout", "dp=2", "--dtype", "f32")),
    Case("decoded", record=("--decode", "6", "--dtype", "f32")),
    Case("paged f32", record=("--paged", "24", "--decode", "6", "--dtype", "f32")),
    Case("paged bf16", record=("--paged", "24", "--decode", "6", "--dtype", "bf16")),
    Case("paged tp=3,pp=2", record=("--paged", "24", "--layout", "tp=3,pp=2", "--dtype", "f32")),
    Case("offloaded f32", record=("--host-memory", "MEMORY", "--dtype", "f32")),
    Case("offloaded, paged, bf16", record=("--host-memory", "MEMORY", "--paged", "24", "--dtype", "bf16")),
    quantised("GGUF Q4_0", LEVELS4, BITS4),
    quantised("GGUF Q8_0", "rounded to 256 levels in blocks of 32", "rounded to 8 bits in blocks of 32"),
    quantised("FP8 blocks", "rounded to levels of an 8-bit float with 3 bits of fraction",
              "rounded to floating point (e4m3) in blocks of 128 x 128"),
    quantised("INT4 groups", "rounded to 16 levels in blocks of 64", "rounded to 4 bits in blocks of 64"),
    Case("Q4_0 against itself", "GGUF Q4_0", ("--dtype", "f32"), "GGUF Q4_0"),
    Case("Q4_0, gate and up swapped", "swapped", ("--dtype", "bf16"), "bf16", False,
         compare=(NOISE, LEVELS4, "more than that noise", "{gate}.weight is that of {up}.weight"),
         locate=(NOISE, BITS4, MORE, "{gate}", "weight of {up} in the place of")),
    Case("Q4_0, other rotary base", "rotated", ("--dtype", "bf16"), "bf16", False, compare=(NOISE, LEVELS4),
         locate=(NOISE, BITS4, MORE, "rope")),
    Case("gate and up swapped", "swapped bf16", ("--dtype", "bf16"), "bf16", False,
         compare=("{gate}.weight is that of {up}.weight",), locate=("weight of {up} in the place of",)),
)


class Lab:
    """Releases and dumps in a folder, made when they are asked for."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.original, self.folder = release.resolve(), folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.tokens = self.folder / "tokens.json"
        if not self.tokens.exists():
            self.tokens.write_text(json.dumps(tokens_of(self.original)))

    @property
    def swapped(self) -> dict[str, str]:
        """Modules whose weights are exchanged, in the first quarter of the layers."""
        layer = config_of(self.original)["num_hidden_layers"] // 4
        return {name: f"model.layers.{layer}.mlp.{name}_proj" for name in ("gate", "up")}

    def release(self, name: str) -> Path:
        """The folder of a form of the release."""
        made = self.folder / "releases" / re.sub(r"\W+", "-", name)
        if name != "bf16" and not (made / "config.json").exists():
            made.parent.mkdir(exist_ok=True)
            FORMS[name](self, made)
        return self.original if name == "bf16" else made

    def dump(self, case: Case) -> tuple[Path, str]:
        """(the dump, why there is none)"""
        out = self.folder / re.sub(r"\W+", "-", case.name)
        if not out.exists():
            code, said = dayzero("check", "record", self.release(case.release), out, "--tokens", self.tokens,
                                 *map(self._filled, case.record))
            return out, said if code else ""
        return out, ""

    def _filled(self, option: str) -> str:
        if option == "MEMORY":
            return f"{sum(each.stat().st_size for each in self.original.glob('*.safetensors')) + 700_000_000}B"
        return str(self.plan()) if option == "PLAN" else option

    def plan(self) -> Path:
        """A plan with stages of 1/2, 1/3 and 1/6 of the layers."""
        path, layers = self.folder / "plan.json", config_of(self.original)["num_hidden_layers"]
        cuts = [0, layers // 2, layers * 5 // 6, layers]
        path.write_text(json.dumps({"plans": [{"layout": {"pp": 3}, "fits": True, "stages": list(pairwise(cuts))}]}))
        return path


def config_of(release: Path) -> dict[str, Any]:
    """config.json"""
    made: dict[str, Any] = json.loads((release / "config.json").read_text())
    return made


def tokens_of(release: Path) -> list[list[int]]:
    """Of some of the bundled texts, the first ones."""
    from dayzero.data.evaluation import bundled_texts
    from dayzero.runtime.tokens import Tokens

    with Tokens(release) as tokens:
        ids = tokens.encode(tuple(bundled_texts()[name].strip() for name in TEXTS))
    return [list(each[:length]) for each, length in zip(ids, LENGTHS, strict=True)]


def dayzero(*words: object) -> tuple[int, str]:
    """(exit code, what it printed)"""
    done = subprocess.run([sys.executable, "-m", "dayzero.cli", *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout + (done.stderr if done.returncode not in (0, 1) else "")


def gguf(kind: str) -> Callable[[Lab, Path], None]:
    """A release that was imported from a GGUF file, which is written here."""
    def make(lab: Lab, out: Path) -> None:
        from tests.support import gguf_file

        file = gguf_file.write(lab.original, lab.folder / f"{kind}.gguf", kind)
        code, said = dayzero("import-gguf", file, out)
        if code:
            raise SystemExit(said)
    return make


def stored(form: str) -> Callable[[Lab, Path], None]:
    """The release with its linear layers in a format of releases."""
    def make(lab: Lab, out: Path) -> None:
        from tests.support import quantised_model

        copied(lab.original, out)
        quantised_model.quantise(out, form)
    return make


def swapped(source: str) -> Callable[[Lab, Path], None]:
    """One layer's gate and up weights exchanged."""
    def make(lab: Lab, out: Path) -> None:
        from safetensors.torch import load_file, save_file

        copied(lab.release(source), out)
        files = {name: path for path in out.glob("*.safetensors") for name in load_file(path)}
        gate, up = (f"{name}.weight" for name in lab.swapped.values())
        values = {name: load_file(files[name])[name] for name in (gate, up)}
        for name, other in ((gate, up), (up, gate)):
            save_file(load_file(files[name]) | {name: values[other]}, files[name], metadata={"format": "pt"})
    return make


def rotated(lab: Lab, out: Path) -> None:
    """A tenth of the base of the rotary embedding."""
    copied(lab.release("GGUF Q4_0"), out)
    config = config_of(out)
    config["rope_parameters"]["rope_theta"] /= 10
    (out / "config.json").write_text(json.dumps(config))


def copied(source: Path, out: Path) -> None:
    """Without the manifest, whose digests do not hold any more."""
    shutil.copytree(source, out)
    (out / "dayzero-manifest.json").unlink(missing_ok=True)


FORMS: dict[str, Callable[[Lab, Path], None]] = {
    "GGUF Q4_0": gguf("Q4_0"), "GGUF Q8_0": gguf("Q8_0"), "FP8 blocks": stored("fp8-block"),
    "INT4 groups": stored("int4"), "swapped": swapped("GGUF Q4_0"), "rotated": rotated, "swapped bf16": swapped("bf16"),
}


def judged(lab: Lab, case: Case) -> dict[str, Any]:
    """A row of the table."""
    row: dict[str, Any] = {"case": case.name, "places": "", "words": "", "wrong": []}
    dump, why = lab.dump(case)
    if why or case.refused:
        right = bool(case.refused) and case.refused in why
        return row | {"verdict": "refused" if why else "ran", "words": why.strip().splitlines()[-2:] if why else "",
                      "wrong": [] if right else ["was to run" if why else "was to be refused"]}
    if not case.against:
        return row | {"verdict": "recorded"}
    reference, _ = lab.dump(next(each for each in CASES if each.name == case.against))
    noise = [option for folder in sorted((lab.folder / "f32").glob("noise-*")) for option in ("--noise", folder)]
    code, said = dayzero("check", "compare", reference, dump, *noise, "--json", "--html", lab.folder / "page.html")
    found = json.loads(said)
    row |= {"verdict": "FAIL" if code else "pass", "places": f"{len(found['places'])} of {found['recorded']}",
            "words": found["suspicion"] or ""}
    row["wrong"] += _missing("compare", lab, case, case.compare, found["suspicion"] or "")
    row["wrong"] += _missing("page", lab, case, case.compare, html.unescape((lab.folder / "page.html").read_text()))
    if bool(code) == case.passes:
        row["wrong"].append(f"was to {'pass' if case.passes else 'fail'}")
    if case.locate:
        row |= _located(lab, case, dump, row)
    return row


def _located(lab: Lab, case: Case, dump: Path, row: dict[str, Any]) -> dict[str, Any]:
    code, said = dayzero("check", "locate", lab.original, dump, "--json")
    found = json.loads(said) if code in (0, 1) else {"error": said}
    told = " ".join(_strings(found.get("rounded", []), found.get("beside_rounding"), found.get("located", [])[:4]))
    lines = [*(each["words"] for each in found.get("rounded", [])), found.get("beside_rounding") or "",
             *(cause["words"] for each in found.get("located", [])[:2] for cause in each["causes"][:1])]
    wrong = [*_missing("locate", lab, case, case.locate, told), *([] if code == 1 else ["locate was to fail"])]
    return {"located": "; ".join(filter(None, lines)) or found.get("error", "")[-300:],
            "wrong": [*row["wrong"], *wrong]}


def _strings(*values: Any) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            yield from _strings(*(value.values() if isinstance(value, dict) else value))


def _missing(who: str, lab: Lab, case: Case, wanted: Sequence[str], said: str) -> list[str]:
    texts = [text.format(**lab.swapped) for text in wanted]
    odd = [f"{who} does not say {text!r}" for text in texts if text not in said]
    return odd + ([f"{who} says {case.silent!r}"] if case.silent in said and case.silent not in wanted else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", type=Path, default=ROOT / "demo" / "SmolLM2-135M")
    parser.add_argument("--folder", type=Path, default=Path("real-runs"))
    parser.add_argument("--only", default="", help="cases whose name matches; what they are compared with is made")
    parser.add_argument("--json", type=Path, help="write the rows here")
    given = parser.parse_args()
    lab, rows = Lab(given.release, given.folder), []
    for case in (each for each in CASES if re.search(given.only, each.name)):
        rows.append(judged(lab, case))
        show(rows[-1])
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1))
    wrong = [row["case"] for row in rows if row["wrong"]]
    odd = f"; not: {', '.join(wrong)}" if wrong else ""
    print(f"{len(rows) - len(wrong)} of {len(rows)} cases are as wanted{odd}")
    sys.exit(bool(wrong))


def show(row: dict[str, Any]) -> None:
    """A case in some lines."""
    print(f"{row['case']:28} {row['verdict']:9} {row['places']:14} {'' if not row['wrong'] else 'NOT AS WANTED'}")
    for name in ("words", "located", "wrong"):
        for text in [row.get(name)] if isinstance(row.get(name), str) else row.get(name) or []:
            if text:
                print(f"    {name}: {text}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
