"""Whether an editor finds what the product imports: every `surefoot` import resolves, and go-to-definition arrives.

    python tools/editor.py

basedpyright (Pylance's engine) reads all files of the product and must resolve each import of ours; jedi must lead from
a use in an algorithm's file to the file that defines it. Prints what is not found; the exit code is 1 then.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
USES = {  # file, name in it -> the file that must be found
    ("offline/iql.py", "Agent"): "agent.py",
    ("offline/iql.py", "Critic"): "networks.py",
    ("online/ppo.py", "clip_surrogate"): "surrogates.py",
    ("offline/iql.py", "Learner"): "learner.py",
}


def unresolved() -> list[str]:
    """Imports of ours that basedpyright does not resolve, as FILE:LINE: message."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    folders = [str(ROOT / folder) for folder in project["tool"]["scikit-build"]["wheel"]["packages"].values()]
    settings = {"include": folders, "typeCheckingMode": "off", "reportMissingImports": "error"}
    settings |= {"reportAttributeAccessIssue": "none", "pythonVersion": "3.11"}
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "pyrightconfig.json")
        file.write_text(json.dumps(settings), encoding="utf-8")
        command = ["-m", "basedpyright", "--project", str(file), "--pythonpath", sys.executable, "--outputjson"]
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)
    read = found["summary"]["filesAnalyzed"]
    print(f"basedpyright: {read} files read")
    lost = [] if read > 500 else [f"basedpyright read {read} files only: {done.stderr[-500:]}"]
    return lost + [
        f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
        if one.get("rule") == "reportMissingImports" and '"surefoot' in one["message"]
    ]


def lost_definitions() -> list[str]:
    """Uses in an algorithm's file from which jedi does not arrive at the definition's file."""
    import jedi

    lost = []
    for (file, name), wanted in USES.items():
        path = ROOT / file
        text = path.read_text(encoding="utf-8")
        if name == "Learner":  # which the file does not import: as a reader adds it
            text += "\nfrom surefoot.core.engine.learner import Learner\nLearner\n"
        script = jedi.Script(text, path=path)
        lines = text.splitlines()
        row = max(number for number, line in enumerate(lines, 1) if name in line)
        arrived = [one.module_path for one in script.goto(row, lines[row - 1].rindex(name), follow_imports=True)]
        if not any(one is not None and one.name == wanted for one in arrived):
            lost.append(f"{file}: jedi finds no {wanted} for {name}, but {arrived}")
    print(f"jedi: {len(USES) - len(lost)} of {len(USES)} definitions found")
    return lost


def main() -> int:
    """Print what is lost; 1 where there is anything."""
    lost = [*unresolved(), *lost_definitions()]
    print(*lost, sep="\n" if lost else "")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
