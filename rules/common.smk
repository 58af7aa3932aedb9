"""Shared by all rules: the plan of this run, the names of its files, and the environment of its jobs.

Needs `config` and SOURCES (preconditions.smk); makes PLAN, PLAN_JSON, RESULTS, TRACES and the functions that turn wildcards into job properties.
"""

import atexit
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from difflib import get_close_matches
from itertools import chain
from pathlib import Path

from cs336_systems.compare.results import find
from cs336_systems.config import AUTO, NONE, QUICK, as_in_a_file, set_by
from cs336_systems.fit.planned import describe_too_large
from cs336_systems.handed_over import ADAPTERS, handed_over
from cs336_systems.implementations import LOADED, family_of
from cs336_systems.lifeline import announce_run
from cs336_systems.plan import make_plan, other_models, plan_to_json
from cs336_systems.record.revisions import present
from cs336_systems.record.source import source_digest
from cs336_systems.run.ending import ending
from cs336_systems.run.failure import describe_end, full_disks, places, printable
from cs336_systems.run.forecast import forecast
from cs336_systems.run.lock import clear_after_dead_owner, note_owner
from cs336_systems.run.progress import ProgressMonitor
from cs336_systems.run.warm import WARM
from snakemake.logging import logger
from snakemake.settings.enums import Quietness
from snakemake.utils import update_config

update_config(config, as_in_a_file(workflow.config_settings.config))
try:
    PLAN = make_plan(config, sources=SOURCES)
except ValueError as error:
    raise Refused(str(error))

PLAN_JSON = plan_to_json(PLAN)
RESULTS = str(PLAN.results)
for part in ("", "logs", "tables", "figures"):
    check_folder(PLAN.results / part)
TRACES = {name: str(PLAN.trace(name)) for name in PLAN.traced}
CLASS = config["students"]
COMPARED_WITH = str(config["with"])
IMPORT_S = 120  # time limit for importing a user's modules
# For each student, the file or folder that names the implementations.
STUDENT_FOLDERS = sorted(Path(CLASS).glob("[!._]*/")) if CLASS != NONE and os.path.isdir(CLASS) else []
STUDENTS = [str(handed_over(folder) or folder / ADAPTERS) for folder in STUDENT_FOLDERS]
if CLASS != NONE and not any(map(handed_over, STUDENT_FOLDERS)):
    raise Refused(
        f"{set_by(SOURCES, ['students'])}: students is '{CLASS}'; "
        "allowed: none, or a folder with one folder per student, each with a tests/adapters.py or an implementations.yaml"
    )
JOBS = {job.path: job for job in PLAN.all_jobs()}
PROGRESS = ProgressMonitor(PLAN)
if " " in sys.prefix:
    # Neither Snakemake (snakemake/snakemake#2645) nor torch.compile quotes the environment's path for the shell.
    environment = workflow.snakemake_tmp_dir / "environment"
    environment.symlink_to(sys.prefix)
    sys.executable = str(environment / "bin" / Path(sys.executable).name)
# Jobs use this interpreter, and import this folder's package and scripts.
os.environ.update(
    PATH=os.pathsep.join([str(Path(sys.executable).parent), os.getenv("PATH", "")]),
    PYTHONPATH=os.pathsep.join(filter(None, [str(workflow.basedir), os.getenv("PYTHONPATH")])),
)
# The TMPDIR of each job: a folder that is removed when this process ends.
tempfile.tempdir = str(workflow.snakemake_tmp_dir)

if workflow.is_main_process:
    announce_run()
    if workflow.output_settings.dryrun:
        atexit.register(lambda: print_forecast())  # below Snakemake's output
    else:
        # The counter of cells is enough; a dry run shows the jobs and their reasons.
        if workflow.output_settings.quiet is not None:  # as in both profiles
            workflow.output_settings.quiet.update({Quietness.PROGRESS, Quietness.REASON})
        if message := clear_after_dead_owner():
            print(message, file=sys.stderr)


wildcard_constraints:
    experiment="|".join(PLAN.jobs),


onstart:
    note_owner(workflow.persistence._lockfile.values(), workflow.snakemake_tmp_dir)
    if workflow.local_exec:
        # Also for processes that run here before the jobs.
        os.environ.update(TMPDIR=str(workflow.snakemake_tmp_dir))
        if not os.access(Path.home(), os.W_OK):
            os.environ.update(TRITON_CACHE_DIR=str(workflow.snakemake_tmp_dir / "triton"))
    pending = pending_jobs()
    if workflow.local_exec:
        check_other_models(pending)
        check_own_implementations(pending)
        # Only on a CPU: a process that has used CUDA cannot be forked, and imports are little of a GPU job's time.
        if PLAN.device == "cpu" and len(pending) > 1:
            os.environ[WARM] = str(workflow.snakemake_tmp_dir / "warm")
            warm = subprocess.Popen([sys.executable, "-m", "cs336_systems.run.warm", os.environ[WARM]])
            atexit.register(lambda: (warm.terminate(), warm.wait()))
        test_together(pending)
    for sentence in describe_too_large([cell for job in pending for cell in job.cells], PLAN.machine):
        print(f"Does not fit: {sentence}.", file=sys.stderr)
    PLAN_FILE.write_text(PLAN_JSON, encoding="utf-8")
    others = [job for job in workflow.dag.needrun_jobs(exclude_finished=False) if job.output]
    PROGRESS.follow(pending, len(others) - len(pending))
    if signal.getsignal(signal.SIGINT) == interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


onsuccess:
    PROGRESS.finish()
    if {"all", "writeup"} & set(workflow.dag_settings.targets or {"all"}):
        print("", *ending(Path(RESULTS), "recorded" if PLAN.recorded else PLAN.device), sep="\n", file=sys.stderr)


onerror:
    PROGRESS.finish()
    for sentence in full_disks([PLAN.results, *places()]):
        print(f"The run has failed, and {sentence}.", file=sys.stderr)


def explain(record):
    """Shorten Snakemake's message on a missing file to the reason of a refusal, or to the allowed targets."""
    text = str(record.msg) if hasattr(record, "exception") else ""
    if getattr(record, "exception", "") == "LockException":
        record.msg = (
            "Error: another run is working in this folder; allowed: one at a time. "
            "If there is none, as after a reboot, run snakemake --unlock"
        )
    elif target := re.search(r"No \w+ to produce (\S+) ", text):
        name = target[1]
        if re.fullmatch(r"on_\d+_gpus", name):
            record.msg = f"Error: {name} has no jobs on {PLAN.machine}; allowed: a machine with that many GPUs, as in --config machine='4 x H200'"
        else:
            made = sorted(each.name for each in workflow.rules if not each.has_wildcards())
            near = ", ".join(get_close_matches(name, made) or made)
            record.msg = f"Error: the target is {name!r}; allowed: {near}, or a file that a rule makes"
    elif refused := re.match(r"Refused in file .*\n(.*)", text):  # by onstart
        record.msg = f"Error: {refused[1]}"
    elif reasons := re.findall(r"^  +(?:Refused: (.*)|\((.*)\))$", text, re.M):
        record.msg = f"Error: {'; '.join(dict.fromkeys(map(''.join, reasons)))}"
    # The message of a failed command is also printed below "Error in rule".
    return not text.startswith("RuleException:\nCalledProcessError")


logger.addFilter(explain)


def pending_jobs():
    """The jobs that this run measures."""
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)  # a dry run ends with all of them finished
    return [JOBS[job.wildcards.job] for job in jobs if job.rule.name == "measure"]


def print_forecast():
    """Print a dry run's forecast for this machine: the jobs to measure, and the jobs that cannot be measured."""
    if not workflow.dag or measures_nothing():
        return
    targets, pending = set(workflow.dag_settings.targets), {job.path for job in pending_jobs()}
    asked = targets & set(PLAN.jobs) or (set(PLAN.jobs) if targets <= {"all", "measurements"} else set())
    refused = {job.path for job in PLAN.all_jobs() if job.experiment in asked and PLAN.obstacle(job)}
    if jobs := [job for job in PLAN.all_jobs() if job.path in pending | refused]:
        print(f"\n{forecast(PLAN, jobs)}", file=sys.stderr)


def check_other_models(jobs):
    """Check in a process that imports PyTorch, before any job begins, that the user's models can be measured."""
    for model in other_models(jobs):
        if error := error_of("model", "cs336_systems.model_check", model):
            raise Refused(f"{set_by(SOURCES, ['model'])}: {printable(error)}")


def check_own_implementations(jobs):
    """Check the same for the user's own implementations."""
    asked = {(family_of(job.experiment), own.text) for job in jobs for own in job.own_implementations}
    arguments = [*chain.from_iterable(sorted(asked))]
    if asked and (error := error_of("implementations", "cs336_systems.implementations", arguments)):
        raise Refused(f"{set_by(SOURCES, ['implementations'])}: {printable(error)}")


def error_of(key, module, arguments):
    """The error of a check that imports the user's modules in a separate process; None if it passes."""
    check = [sys.executable, "-m", module, *arguments]
    try:
        checked = subprocess.run(check, capture_output=True, text=True, timeout=IMPORT_S)
    except subprocess.TimeoutExpired:
        return f"{key} {' '.join(arguments)}: not imported within {IMPORT_S} s"
    if checked.returncode == 0 and checked.stdout.endswith(LOADED):
        return None
    said = checked.stderr.strip().splitlines()
    return said[-1] if said else f"{key} {' '.join(arguments)}: its process {describe_end(checked.returncode)}"


def needed_tests(job):
    """The test modules of the code that a job measures, by its cells."""
    return set().union(*(cell.needed_tests() for cell in job.cells))


def test_together(jobs):
    """Run the tests of all jobs' code together, because starting PyTorch and several ranks takes longer than most tests.

    If one fails, each job runs its own, so that only jobs with incorrect code are lost.
    """
    tests = sorted({test for job in jobs for test in needed_tests(job)})
    if len(jobs) > 1:
        print(
            f"Testing the code before it is measured (test modules: {len(tests)}): a few minutes, once per version of the code.",
            file=sys.stderr,
        )
        tested = workflow.snakemake_tmp_dir / "tested"
        tested.touch()
        command = ["rules/correctness.sh", f"{RESULTS}/correctness", *tests]
        if subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0:
            os.environ.update(CS336_SYSTEMS_TESTED=str(tested))


def refused_if(condition, reason):
    """Input that blocks a job: none, or a file that cannot exist and has the reason as its name.

    If an input is missing, Snakemake keeps an existing output, or else prints the missing name. So results from a
    machine with more GPUs stay, and `snakemake writeup` measures nothing.
    """
    text = str(reason)  # file names have limited length
    return [f"({text if len(text) < 240 else f'{text[:240]}…'})"] if condition else []


NOT_MEASURED = refused_if(
    PLAN.recorded, f"recorded is '{PLAN.machine}', so nothing is measured; allowed: all, writeup or figures"
)


def planned_csvs(*experiments):
    """The CSV files of the jobs that this run may measure, of all experiments or of the named ones."""
    return [
        str(PLAN.csv(job))
        for experiment in (experiments or PLAN.jobs)
        for job in PLAN.jobs[experiment].values()
        if not PLAN.obstacle(job)
    ]


def csvs_on(gpus):
    """The CSV files of the jobs that need this many GPUs and may be measured in this run, or why there are none."""
    jobs = [job for job in JOBS.values() if PLAN.gpus_of(job) == gpus]
    csvs = [str(PLAN.csv(job)) for job in jobs if not PLAN.obstacle(job)]
    return csvs or refused_if(jobs, PLAN.obstacle(jobs[0]))


def raw_csvs(wildcards):
    """Inputs of tables: the planned jobs' CSV files that exist or will exist; for recorded results, all files."""
    if PLAN.recorded:
        return sorted(str(path) for name in PLAN.jobs for path in (PLAN.raw / name).glob("*.csv"))
    coming = set() if measures_nothing() else set(planned_csvs())
    csvs = [str(PLAN.csv(job)) for job in PLAN.all_jobs()]
    return [csv for csv in csvs if csv in coming or os.path.exists(csv)]


def nothing_to_report(wildcards):
    """Input that blocks an empty report: none, or a reason that names the folders that have measurements."""
    if not measures_nothing() or raw_csvs(wildcards):
        return []
    others = sorted({str(csv.parents[2]) for name in PLAN.jobs for csv in Path("results").glob(f"**/raw/{name}/*.csv")})
    made = f", or add the --config that made {', '.join(others)}" if others else ""
    return refused_if(True, f"{PLAN.raw} has none of the planned results; run `snakemake` to measure them{made}")


def cards_to_pack(wildcards):
    """The CSV files of the card that exist."""
    return sorted(map(str, PLAN.raw.glob("card/*.csv")))


def not_compared(wildcards):
    """Input that blocks the comparison: none, or the reason."""
    if COMPARED_WITH == NONE:
        return refused_if(True, "with is 'none'; allowed: a label in results/ or recorded/, or a folder")
    try:
        raw, _ = find(COMPARED_WITH)
    except ValueError as error:
        return refused_if(True, error)
    return refused_if(
        raw.resolve() == PLAN.raw.resolve(), f"with is '{COMPARED_WITH}', which is this run; allowed: another"
    )


def scripts_of(package):
    """The names of the modules of a package of scripts, without importing them."""
    return [f"scripts.{package}.{found.name}" for found in pkgutil.iter_modules([f"scripts/{package}"])]


def reference_csvs():
    """The CSV files of the recorded machine that the report compares with, if it does."""
    return sorted(str(path) for path in PLAN.reference.glob("*/*.csv")) if PLAN.reference else []


def traces_to_draw(wildcards):
    """The traces of steps: the recorded ones, or those that exist or will exist."""
    return [trace for trace in TRACES.values() if os.path.exists(trace) or not measures_nothing()]


def figures_to_draw(wildcards):
    """The arguments of `scripts.stages.draw` for each figure."""
    traced = traces_to_draw(wildcards)
    traces = {name: path for name, path in TRACES.items() if path in traced}
    return [
        {
            "script": figure.script,
            "output": FIGURES[name],
            "code": source_digest(*figure.modules),
            "source": figure.sources(TABLES, traces),
        }
        for name, figure in CONTENTS.figures.items()
    ]


def measures_nothing():
    """Whether only targets that use existing CSV files run: writeup, web or bundle, perhaps with submission."""
    targets = set(workflow.dag_settings.targets)
    made = {"writeup", "web", "bundle"}
    return PLAN.recorded or bool(targets & made) and targets <= made | {"submission"}


def obstacles(wildcards):
    """Input that blocks a job or an artifact in this run, if anything does."""
    obstacle = PLAN.obstacle(JOBS.get(wildcards.get("job"), PLAN.traced["training_step"]))
    if refused := (
        NOT_MEASURED
        or refused_if(measures_nothing(), "nothing is measured for `snakemake writeup`")
        or refused_if(obstacle, obstacle)
    ):
        return refused
    if not workflow.local_exec and config["machine"] == AUTO:
        raise Refused(
            f"{set_by(SOURCES, ['machine'])}: machine is 'auto', but jobs run on other machines; allowed: their GPUs, as in '4 x NVIDIA H200', or cpu"
        )
    return []


def job_command(wildcards):
    """The command that measures a job."""
    return JOBS[wildcards.job].command


def card_jobs():
    """The jobs of the card, by the CSV files of a run that starts now."""
    began = f"{datetime.now(UTC):%Y%m%dT%H%M%S}"
    return {f"{PLAN.raw}/card/{began}-{name}.csv": job for name, job in PLAN.on_request.get("card", {}).items()}


def card_obstacles(wildcards):
    """Input that blocks the card, if anything does."""
    reason = f"experiments.card.{PLAN.scale} has no grid; allowed: at least one, see config.yaml"
    return refused_if(not PLAN.on_request.get("card"), reason) or obstacles(wildcards)


def card_command(csvs):
    """The command that measures the card, one job after another."""
    measure = f"python -m cs336_systems.run.relaunch --timeout {config['cell_timeout']}"
    options = f"--device {PLAN.device} --seed {config['seed']}"
    return " && ".join(f"{measure} {job.command} {options} --output {csv}" for csv, job in csvs.items())


def job_source(wildcards):
    """Revisions of the code that a job runs: when they change, the job is stale."""
    return JOBS[wildcards.job].revisions


def trace_source(wildcards):
    """Revisions of the code that the traced steps run."""
    return f"{' '.join(str(job.revisions) for job in PLAN.traced.values())} kernel_trace={present('kernel_trace')}"


def trace_commands(wildcards):
    """The commands that trace the steps, one after another."""
    trace = (
        f"python -m cs336_systems.run.relaunch --timeout {config['cell_timeout']}"
        " python -m cs336_systems.artifacts.kernel_trace"
    )
    options = f"--device {PLAN.device} --seed {config['seed']} --output {RESULTS}/traces"
    return " && ".join(f"{trace} {job.arguments} {options}/{name}.json.gz" for name, job in PLAN.traced.items())


def job_priority(wildcards):
    """At least 2; higher for jobs that need more GPUs, since a rented machine may be taken back, then for earlier jobs."""
    last_first = sorted(reversed(JOBS), key=lambda path: PLAN.gpus_of(JOBS[path]))
    return 2 + last_first.index(wildcards.job)


def job_tests(wildcards):
    """The test modules that must pass on the machine before the job measures there."""
    return " ".join(sorted(needed_tests(JOBS[wildcards.job])))


def job_gpus(wildcards):
    """Number of GPUs that a job requests: at least one if there are GPUs, so that a cluster runs it on a GPU node."""
    return max(PLAN.gpus_of(JOBS[wildcards.job]), int(PLAN.device == "cuda"))
