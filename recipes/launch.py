# SPDX-License-Identifier: Apache-2.0
"""Start an experiment: a YAML file with the knobs and overrides of one training run.

    python -m recipes.launch recipes/prime/eurus2-7b.yaml [arguments ...] [verl overrides ...]

An experiment has these keys; all values are texts in which Jinja inserts knobs.

``base``: the experiment that this one varies, relative to its folder. Knobs replace those of the
base, overrides come after its overrides.
``arguments``: names of the values that come first on the command line.
``config``: the primary configuration.
``knobs``: names and defaults. Environment variables of these names replace the defaults.
``overrides``: of verl's configuration. Empty ones are omitted; the user's come last.
``choices``: for a knob, each allowed value and the overrides that it adds.
``empty``: knobs for which an empty variable counts; elsewhere it is as if it were not set.
``refuse``: an error unless it is empty.
``files``: needed unless ``DRY_RUN`` or ``SHRINK`` is set; ``missing`` is what to do about missing
ones, ``make`` a command of Python that makes them.

Every experiment also has the knobs in ``RUN_KNOBS``. With ``DRY_RUN=1`` the configuration is
checked and its memory planned for devices of ``DEVICE_MEMORY`` GiB; only the sizes of the models
are read, and no GPU is needed. Status: 0 if it fits, 1 if it would not start or fit, 2 without a
plan.

With ``SHRINK=1`` the same run makes two steps on the CPU, with an untrained tiny model of the
family of the experiment's model, generated rows and a verifier that counts digits: filter, PRM,
checkpoints and validation all run, but nothing is learned. With ``RAY_ADDRESS`` it runs on the
``NNODES`` nodes of that cluster, one rank on each. ``SHRINK_STEPS=4`` makes four steps, or
continues from two existing ones. ``SHRINK=gpu`` makes them on one GPU, with the configuration for
GPUs; ``SHRINK_ROLLOUT=vllm`` generates with vLLM. Nothing is compiled by torch or vLLM, unless
``TORCH_COMPILE_DISABLE=0`` is set.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from jinja2 import meta
from jinja2.sandbox import SandboxedEnvironment

ROOT = Path(__file__).resolve().parents[1]
RUN_KNOBS = {
    name: ""
    for name in ("DRY_RUN", "SHRINK", "SHRINK_STEPS", "SHRINK_ROLLOUT", "NNODES", "RAY_ADDRESS")
} | {"DEVICE_MEMORY": "80"}
JINJA = SandboxedEnvironment()
# The content of a file inside single quotes of an override.
JINJA.filters["quoted_file"] = lambda path: Path(path).read_text().rstrip().replace("'", r"\'")


class ExperimentError(ValueError):
    """A value of a user that an experiment does not allow; the message is one line."""


def read_experiment(file: Path) -> dict[str, Any]:
    """Read an experiment, joined with its bases; every value is a text."""
    # The base loader keeps 1e-6, true and null as they are written.
    experiment = yaml.load(file.read_text(), yaml.BaseLoader)
    layer = (experiment.get("overrides", []), experiment.get("choices", {}))
    if "base" not in experiment:
        return {"arguments": [], **experiment, "layers": [layer]}
    base = read_experiment(file.parent / experiment["base"])
    knobs = base["knobs"] | experiment.get("knobs", {})
    return base | experiment | {"knobs": knobs, "layers": [*base["layers"], layer]}


class Experiment:
    """The command of an experiment for one environment and command line.

    ``ExperimentError``: an argument is missing, a knob has a value that is not allowed, or the
    experiment refuses the values.
    """

    def __init__(self, file: Path, words: list[str], environment: Mapping[str, str]) -> None:
        self._content = read_experiment(file)
        names = self._content["arguments"]
        if len(words) < len(names):
            raise ExperimentError(f"give {' '.join(names)}; --help explains")
        self._values: dict[str, str | int] = {"ROOT": str(ROOT)}
        for name, word in zip(names, words, strict=False):
            self._values[name] = word
        self._environment = environment
        self._words = words[len(names) :]
        self.dry_run = environment.get("DRY_RUN", "0") not in ("", "0")
        self.shrink = environment.get("SHRINK", "0") not in ("", "0")
        self._values["SHRINK"] = environment.get("SHRINK", "") if self.shrink else ""
        self._check()
        # Shrunk runs have a folder inside that of the run.
        self.output_dir = Path(str(self.get("OUTPUT_DIR")), "shrunk" if self.shrink else "")
        self._values["OUTPUT_DIR"] = str(self.output_dir)

    def _check(self) -> None:
        for _, choices in self._content["layers"]:
            for name, allowed in choices.items():
                value = str(self.get(name))
                if value not in allowed:
                    *most, last = (value or "empty" for value in allowed)
                    raise ExperimentError(
                        f"{name}={value} must be {', '.join(most)} or {last}; --help explains"
                    )
        problem = self.render(self._content.get("refuse", ""))
        if problem:
            raise ExperimentError(problem)

    def get(self, name: str) -> str | int:
        """Return a knob's value: the environment's, or the default; a whole number as ``int``."""
        if name not in self._values:
            value = self._environment.get(name, "")
            is_set = name in self._environment and name in self._content.get("empty", [])
            if not value and not is_set:
                value = self.render((RUN_KNOBS | self._content["knobs"])[name])
            number = value.isdecimal() and str(int(value)) == value
            self._values[name] = int(value) if number else value
        return self._values[name]

    def render(self, text: str) -> str:
        """Return a text with the values of the knobs that it names."""
        names = meta.find_undeclared_variables(JINJA.parse(text))
        return JINJA.from_string(text).render({name: self.get(name) for name in names})

    @property
    def config(self) -> str:
        return self.render(self._content["config"])

    @property
    def overrides(self) -> list[str]:
        """Return the overrides of all layers, then the user's."""
        words = []
        for overrides, choices in self._content["layers"]:
            chosen = [word for name in choices for word in choices[name][str(self.get(name))]]
            words += [self.render(word) for word in [*overrides, *chosen]]
        return [*filter(None, words), *self._words]

    def make_files(self, python: str) -> None:
        """Make missing files, or raise ``ExperimentError`` if the experiment cannot."""
        # A list of files is left to verl.
        files = [self.render(file) for file in self._content.get("files", [])]
        missing = [file for file in files if file[:1] != "[" and not Path(file).exists()]
        if missing and "make" in self._content:
            words = [self.render(word) for word in self._content["make"]]
            subprocess.run([python, *filter(None, words)], check=True)
        elif missing:
            raise ExperimentError(f"{missing[0]} does not exist; {self._content['missing']}")


def prepare_shrunk(experiment: Experiment, python: str) -> list[str]:
    """Write the inputs of a shrunk run; return its overrides."""
    words = experiment.overrides
    options = []
    if experiment.get("RAY_ADDRESS"):
        options += ["--nodes", str(experiment.get("NNODES") or 1)]
    for name in ("steps", "rollout"):
        value = experiment.get(f"SHRINK_{name.upper()}")
        options += [f"--{name}", str(value)] if value else []
    for agent, loop in (("tools", "bounded_tool_agent"), ("environment", "environment_agent")):
        if any(word.endswith(f".default_agent_loop={loop}") for word in words):
            options += ["--agent", agent]
    family, inputs = experiment.config.split("_")[0], str(experiment.output_dir / "inputs")
    command = [python, "-m", "recipes.smoke.prepare", family, inputs, *words, *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


def build_environment(experiment: Experiment, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the run: where it logs, and what a shrunk run needs."""
    folder = experiment.output_dir
    logs = {
        "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
        "TENSORBOARD_DIR": str(folder / "tensorboard"),
    }
    if not experiment.shrink or experiment.dry_run:
        return {**environment, **logs}
    # In addition to the modules of the command.
    modules = ["recipes.smoke.smoke_verifier", environment.get("VERL_USE_EXTERNAL_MODULES", "")]
    shrunk = {
        "VERL_USE_EXTERNAL_MODULES": ",".join(filter(None, modules)),
        "TORCH_COMPILE_DISABLE": environment.get("TORCH_COMPILE_DISABLE") or "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if experiment.get("SHRINK") != "gpu":
        shrunk["VERL_PLATFORM"] = "cpu"
    return {**environment, **logs, **shrunk}


def launch(file: Path, words: list[str], environment: Mapping[str, str]) -> None:
    """Replace this process by the plan of an experiment, or by its run."""
    python = environment.get("PYTHON") or sys.executable
    experiment = Experiment(file, words, environment)
    config = experiment.config
    if experiment.dry_run:
        configs = str(ROOT / "recipes" / "model_configs")
        command = ["-m", "prime_ext.doctor", "--plan", "--config-name", config]
        command += ["--device-memory", str(experiment.get("DEVICE_MEMORY"))]
        command += ["--model-configs", configs, *experiment.overrides]
    else:
        shrunk = []
        if not experiment.shrink:
            experiment.make_files(python)
        experiment.output_dir.mkdir(parents=True, exist_ok=True)
        if experiment.shrink:
            shrunk = prepare_shrunk(experiment, python)
            on_cpu = experiment.get("SHRINK") != "gpu" and not config.endswith("_cpu")
            config += "_cpu" * on_cpu
        command = ["-m", "prime_ext.train", f"--config-name={config}"]
        command += [*experiment.overrides, *shrunk]
        print(f"+ {shlex.join([python, *command])}", file=sys.stderr, flush=True)
    os.execvpe(python, [python, *command], build_environment(experiment, environment))


def main() -> int:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    file = Path(sys.argv[1])
    try:
        launch(file, sys.argv[2:], os.environ)
    except ExperimentError as error:
        print(f"{file.name}: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
