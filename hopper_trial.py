"""One trial of the Hopper kernels on one H200: tests, times beside other libraries, tiles.

    python hopper_trial.py --seconds 480 --out FOLDER

Every piece of work that may hang runs in a process of its own under a hard limit. Output: FOLDER/tests.txt, FOLDER/times.csv
(a row per shape, pass, contender and round) and FOLDER/tiles.csv, written row by row. Needs flash-attn-4 beside the project.
"""
import argparse, csv, dataclasses, json, math, os, re, subprocess, sys, time
from pathlib import Path

T0 = time.time()
PY = [sys.executable, "-u", os.path.abspath(__file__)]
ENV = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": os.getcwd() + ":" + os.environ.get("PYTHONPATH", "")}

# batch, heads, tokens, d, causal; the first ones matter most
SHAPES = [
    (1, 16, 16384, 64, 1), (1, 16, 16384, 128, 1), (4, 32, 4096, 128, 1), (8, 32, 2048, 128, 1), (4, 32, 1024, 128, 1),
    (4, 32, 1024, 64, 1), (8, 16, 2048, 64, 1), (4, 32, 4096, 64, 1), (8, 12, 1024, 64, 1), (4, 25, 1024, 64, 1),
    (4, 32, 1024, 80, 1), (2, 32, 32768, 128, 1), (1, 16, 16384, 64, 0), (1, 16, 16384, 128, 0), (4, 32, 4096, 128, 0),
    (4, 32, 1024, 64, 0), (4, 32, 1024, 128, 0), (8, 16, 2048, 64, 0), (4, 16, 8192, 128, 1),
    # where the choice between Hopper and Triton kernels lies
    (1, 16, 512, 64, 1), (1, 16, 1024, 64, 1), (1, 16, 1024, 128, 1), (1, 16, 2048, 64, 1), (1, 1, 8192, 128, 1),
    (1, 1, 16384, 64, 1), (4, 32, 512, 64, 1), (8, 32, 256, 64, 1),
]
TUNE = [(4, 32, 1024, 64), (4, 32, 1024, 128), (8, 16, 2048, 64), (8, 32, 2048, 128), (4, 32, 4096, 64), (4, 32, 4096, 128),
        (1, 16, 16384, 64), (1, 16, 16384, 128), (2, 32, 32768, 128), (1, 16, 1024, 64)]
FORWARD = {64: [dict(consumers=3, stages=3), dict(consumers=3, stages=2), dict(consumers=2, stages=3), dict(consumers=2, stages=4),
                dict(consumers=1, stages=2), dict(consumers=1, stages=3, block_n=64)],
           128: [dict(consumers=2, stages=2), dict(consumers=2, stages=3), dict(consumers=1, stages=2, block_n=64), dict(consumers=3, stages=3, block_n=64)]}
BACKWARD = {64: [dict(stages=2, early_dv=True), dict(stages=2, early_dv=False), dict(stages=3, early_dv=True), dict(stages=3, early_dv=False)],
            128: [dict(stages=2), dict(stages=3), dict(stages=2, ds_stages=1)]}


def say(*x):
    print(f"[{time.time() - T0:5.0f}s]", *x, flush=True)


# ---------------------------------------------------------------- children

def inputs(batch, heads, n, d, seed=0):
    import torch
    g = torch.Generator(device="cuda").manual_seed(seed)
    return [torch.randn(batch, heads, n, d, device="cuda", dtype=torch.bfloat16, generator=g) for _ in range(4)]


def warm(spec):
    """Compile one variant, run it at lengths that tiles divide and that none divides; relative errors against float64."""
    import torch
    from cs336_systems.attention.hopper import launch
    from cs336_systems.attention.hopper.tile_config import BackwardTiles, ForwardTiles
    kind, d, causal, options = json.loads(spec)
    t = time.time()
    report, good = [], True
    for n, m in ((256, 256), (384, 1024), (390, 333), (333, 470)):
        q, k, v, do = inputs(1, 3, max(n, m), d)
        q, do = q[..., :n, :].contiguous(), do[..., :n, :].contiguous()
        k, v = k[..., :m, :].contiguous(), v[..., :m, :].contiguous()
        Q, K, V = (x.double().requires_grad_() for x in (q, k, v))
        a = (Q @ K.transpose(-1, -2)) * d**-0.5
        if causal:
            a = a.masked_fill(torch.arange(m, device="cuda") > torch.arange(n, device="cuda")[:, None], -math.inf)
        ref = a.softmax(-1) @ V
        if kind == "forward":
            want = {"o": ref, "lse": a.logsumexp(-1)[..., None]}
            o, lse = launch.attention_forward(q, k, v, bool(causal), tiles=ForwardTiles(group=2, **options))
            got = {"o": o, "lse": lse[..., None]}
        else:
            want = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(ref, (Q, K, V), do.double())))
            lse = a.logsumexp(-1).float().detach(); o = ref.detach().bfloat16()
            got = dict(zip(("dq", "dk", "dv"), launch.attention_backward(do, q, k, v, o, lse, bool(causal), tiles=BackwardTiles(group=2, **options))))
        torch.cuda.synchronize()
        errors = {name: ((got[name].double() - want[name]).norm() / want[name].norm()).item() for name in want}
        report.append(f"{n}x{m} " + "/".join(f"{x:.1e}" for x in errors.values()))
        for name, x in errors.items():
            if not x < 1e-2:
                good = False  # where: the error of each 64 rows of head 0 and of each 16 columns, relative to the result's norm there
                difference = (got[name].double() - want[name])[0, 0]
                rows = [f"{c.norm().item() / (w.norm().item() + 1e-30):.0e}" for c, w in zip(difference.split(64), want[name][0, 0].split(64))]
                columns = [f"{c.norm().item() / (w.norm().item() + 1e-30):.0e}" for c, w in zip(difference.split(16, 1), want[name][0, 0].split(16, 1))]
                heads = [f"{(got[name][0, h].double() - want[name][0, h]).norm().item() / want[name][0, h].norm().item():.0e}" for h in range(3)]
                report.append(f"[{name}: rows {rows} columns {columns} heads {heads}]")
    print("WARM", "ok" if good else "WRONG", "; ".join(report), f"{time.time() - t:.0f}s", flush=True)


def contenders(shape):
    """name -> function of q, k, v with gradients."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from cs336_systems.attention import triton_launch
    from cs336_systems.attention.hopper import launch, tile_config
    batch, heads, n, d, causal = shape
    causal = bool(causal)

    def tiled(module, forward_tiles, backward_tiles):
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                o, lse = module.attention_forward(q, k, v, causal, tiles=forward_tiles)
                ctx.save_for_backward(q, k, v, o, lse)
                return o
            @staticmethod
            def backward(ctx, do):
                return module.attention_backward(do, *ctx.saved_tensors, causal, tiles=backward_tiles)
        return F.apply

    def sdpa(backend):
        def call(q, k, v):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return call

    today = [dataclasses.replace(x, group=None) for x in triton_launch.default_tiles(torch.bfloat16, torch.Size((batch, heads, n, d)))]
    result = {"hopper": tiled(launch, None, None), "triton": tiled(triton_launch, *today)}
    for g in (4, 8):
        result[f"triton_group_{g}"] = tiled(triton_launch, *(dataclasses.replace(x, group=g) for x in today))
    result |= {"sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION), "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION)}
    try:
        from flash_attn.cute import flash_attn_func
        def fa4(q, k, v):
            o = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
        result["flash_attention_4"] = fa4
    except ImportError as e:
        print("NOTE flash_attn.cute:", e, flush=True)
    return result


def timer():
    import torch
    def timed(f, ms=8.0):
        """Milliseconds per call, and calls, after warming up."""
        f(); f(); torch.cuda.synchronize()
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); f(); b.record(); torch.cuda.synchronize()
        n = max(3, min(200, int(ms / max(a.elapsed_time(b), 1e-3))))
        a.record()
        for _ in range(n):
            f()
        b.record(); torch.cuda.synchronize()
        return a.elapsed_time(b) / n, n
    return timed


def power():
    import torch
    try:
        return torch.cuda.clock_rate(), torch.cuda.power_draw() // 1000
    except Exception:
        return "", ""


def times(out, skip, rounds, limit):
    import torch
    skip = {tuple(x) for x in json.loads(skip)}
    done = set()
    path = Path(out, "times.csv")
    new = not path.exists()
    if not new:
        done = {r["shape"] for r in csv.DictReader(path.open()) if r["pass"] == "end"}
    timed = timer()
    with path.open("a", newline="") as file:
        w = csv.writer(file)
        if new:
            w.writerow(["shape", "contender", "pass", "round", "ms", "calls", "sm_mhz", "watt"]); file.flush()
        for shape in SHAPES:
            if time.time() > limit:
                print("NOTE no time for", shape, flush=True); continue
            name = "x".join(map(str, shape))
            if name in done:
                continue
            q, k, v, do = inputs(*shape[:4])
            leaves = [x.requires_grad_() for x in (q, k, v)]
            calls = {}
            for c, f in contenders(shape).items():
                if (name, c) in skip:
                    continue
                print("START", json.dumps([name, c]), flush=True)
                try:
                    o = f(*leaves)
                    torch.autograd.grad(o, leaves, do, retain_graph=True)
                    torch.cuda.synchronize()
                except Exception as e:
                    print("NOTE", name, c, type(e).__name__, str(e)[:200].replace("\n", " "), flush=True); continue
                calls[c] = (f, o)
            if "sdpa_flash" in calls and "hopper" in calls:
                e = (calls["hopper"][1].float() - calls["sdpa_flash"][1].float()).norm() / calls["sdpa_flash"][1].float().norm()
                print(f"SAME {name} hopper against sdpa_flash: {e.item():.1e}", flush=True)
            many = rounds if shape[2] < 32768 else 2
            for r in range(many):
                for c, (f, o) in calls.items():
                    print("START", json.dumps([name, c]), flush=True)
                    for p, g in (("forward", lambda: f(*leaves)), ("backward", lambda: torch.autograd.grad(o, leaves, do, retain_graph=True)),
                                 ("both", lambda: torch.autograd.grad(f(*leaves), leaves, do))):
                        ms, n = timed(g)
                        w.writerow([name, c, p, r, f"{ms:.5f}", n, *power()])
                    file.flush()
            for c, (f, o) in calls.items():  # the host's part: without waiting
                if shape[2] <= 1024 and c in ("hopper", "triton", "sdpa_flash", "sdpa_cudnn", "flash_attention_4"):
                    def step(): torch.autograd.grad(f(*leaves), leaves, do)
                    for _ in range(3): step()
                    best = math.inf
                    for _ in range(5):
                        torch.cuda.synchronize(); t = time.perf_counter()
                        for _ in range(10): step()
                        best = min(best, (time.perf_counter() - t) / 10); torch.cuda.synchronize()
                    w.writerow([name, c, "host", 0, f"{best * 1e3:.5f}", 50, "", ""]); file.flush()
            w.writerow([name, "-", "end", 0, 0, 0, "", ""]); file.flush()
            print("END", name, flush=True)
            del q, k, v, do, leaves, calls
            torch.cuda.empty_cache()


def tiles(out, skip, rounds, limit):
    import torch
    from cs336_systems.attention.hopper import launch, tile_config
    skip = {tuple(x) for x in json.loads(skip)}
    path = Path(out, "tiles.csv")
    new = not path.exists()
    done = set() if new else {r["shape"] for r in csv.DictReader(path.open()) if r["pass"] == "end"}
    timed = timer()
    with path.open("a", newline="") as file:
        w = csv.writer(file)
        if new:
            w.writerow(["shape", "pass", "tiles", "round", "ms", "calls", "sm_mhz", "watt"]); file.flush()
        for shape in TUNE:
            batch, heads, n, d = shape
            name = "x".join(map(str, shape))
            if name in done or time.time() > limit:
                continue
            q, k, v, do = inputs(*shape)
            o, lse = launch.attention_forward(q, k, v, True)
            default = tile_config.forward_tiles(d, n).group, tile_config.backward_tiles(d, n).group
            work = []
            for i, options in enumerate(FORWARD[d]):
                for group in sorted({1, 4, 16, default[0]}) if i == 0 else (default[0], 1):
                    work.append(("forward", tile_config.ForwardTiles(group=group, **options)))
            for i, options in enumerate(BACKWARD[d]):
                for group in sorted({1, 4, 16, default[1]}) if i == 0 else (default[1],):
                    work.append(("backward", tile_config.BackwardTiles(group=group, **options)))
            for r in range(rounds if n < 32768 else 1):
                for p, t in work:
                    if (name, str(t)) in skip:
                        continue
                    print("START", json.dumps([name, str(t)]), flush=True)
                    f = (lambda: launch.attention_forward(q, k, v, True, tiles=t)) if p == "forward" else (
                        lambda: launch.attention_backward(do, q, k, v, o, lse, True, tiles=t))
                    ms, calls = timed(f)
                    w.writerow([name, p, str(t), r, f"{ms:.5f}", calls, *power()]); file.flush()
            w.writerow([name, "end", "-", 0, 0, 0, "", ""]); file.flush()
            print("END", name, flush=True)


# ---------------------------------------------------------------- the parent

def pool(jobs, width, limit_each, until):
    """jobs: name -> command. Yields name, output, or None if killed."""
    waiting, running = list(jobs.items()), {}
    while waiting or running:
        while waiting and len(running) < width and time.time() < until:
            name, command = waiting.pop(0)
            log = open(f"/tmp/trial_{abs(hash(name))}.log", "w+")
            running[name] = (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=ENV), time.time(), log)
        if waiting and time.time() >= until:
            for name, _ in waiting: yield name, "NO TIME", False
            waiting = []
        for name, (p, t, log) in list(running.items()):
            over = time.time() - t > limit_each or time.time() > until + 20
            if p.poll() is None and not over:
                continue
            hung = p.poll() is None
            if hung: p.kill(); p.wait()
            log.seek(0); text = log.read(); log.close(); del running[name]
            yield name, text, hung
        time.sleep(0.1)


def watched(mode, out, rounds, until, quiet):
    """Run a child that prints START; one that prints nothing for `quiet` seconds is killed and started again without it."""
    skip = []
    while time.time() < until:
        log = Path(f"/tmp/trial_{mode}.log")
        with log.open("w") as file:
            p = subprocess.Popen([*PY, "--child", mode, "--out", out, "--skip", json.dumps(skip), "--rounds", str(rounds), "--limit", str(until)], stdout=file, stderr=subprocess.STDOUT, env=ENV)
            size, last = 0, time.time()
            while p.poll() is None:
                if log.stat().st_size != size: size, last = log.stat().st_size, time.time()
                if time.time() - last > quiet or time.time() > until + 30: p.kill(); p.wait(); break
                time.sleep(0.2)
        text = log.read_text()
        for line in text.split("\n"):
            if line.startswith(("NOTE", "SAME", "END")): say(mode, line[:300])
        if p.returncode == 0: return
        starts = re.findall(r"^START (.*)$", text, re.M)
        say(mode, "ended with", p.returncode, "in", starts[-1] if starts else "-", "|", " | ".join(text.strip().split("\n")[-3:])[-500:])
        if not starts: return
        skip.append(json.loads(starts[-1]))
        if len(skip) > 8: return


def summary(out):
    import statistics
    path = Path(out, "times.csv")
    if path.exists():
        best = {}
        for r in csv.DictReader(path.open()):
            best.setdefault((r["shape"], r["pass"], r["contender"]), []).append(float(r["ms"]))
        med = {k: statistics.median(v) for k, v in best.items()}
        names = ["hopper", "flash_attention_4", "sdpa_cudnn", "sdpa_flash", "triton", "triton_group_4", "triton_group_8"]
        say("medians, ms: forward / backward / both; ratio of both to hopper's")
        for shape in dict.fromkeys(k[0] for k in med):
            base = med.get((shape, "both", "hopper"))
            for c in names:
                if (shape, "both", c) in med:
                    x = [med[(shape, p, c)] for p in ("forward", "backward", "both")]
                    host = med.get((shape, "host", c))
                    print(f"  {shape:22s} {c:18s} " + " ".join(f"{y:9.4f}" for y in x) + (f"  {x[2] / base:5.2f} x" if base else "") + (f"  host {host * 1e3:.0f} us" if host else ""))
    path = Path(out, "tiles.csv")
    if path.exists():
        rows = {}
        for r in csv.DictReader(path.open()):
            rows.setdefault((r["shape"], r["pass"]), {}).setdefault(r["tiles"], []).append(float(r["ms"]))
        for key, by in rows.items():
            if key[1] == "end": continue
            say(*key)
            for t, v in sorted(by.items(), key=lambda x: statistics.median(x[1])):
                print(f"     {statistics.median(v):9.4f}  {t}")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=420); a.add_argument("--out", default=os.environ.get("OUT", "."))
    a.add_argument("--child"); a.add_argument("--skip", default="[]"); a.add_argument("--rounds", type=int, default=3); a.add_argument("--limit", type=float, default=0)
    a.add_argument("--spec"); a.add_argument("--no-tests", action="store_true"); a.add_argument("--width", type=int, default=14)
    a = a.parse_args()
    if a.child == "warm": return warm(a.spec)
    if a.child == "times": return times(a.out, a.skip, a.rounds, a.limit)
    if a.child == "tiles": return tiles(a.out, a.skip, 2, a.limit)
    end = T0 + a.seconds
    # 1. compile and check each variant, in parallel; what hangs or is wrong here is not timed
    specs = [json.dumps([kind, d, c, o]) for kind, table in (("forward", FORWARD), ("backward", BACKWARD)) for d in (64, 128) for c in (1, 0)
             for o in (table[d] if c else table[d][:1])]
    bad = 0
    for name, text, hung in pool({s: [*PY, "--child", "warm", "--spec", s] for s in specs}, a.width, 75, T0 + 110):
        line = [x for x in text.split("\n") if x.startswith("WARM")]
        ok = bool(line) and " ok " in line[0]
        bad += not ok
        say("HANG" if hung else "", name, line[0] if line else " | ".join(text.strip().split("\n")[-4:])[-600:])
    say("variants that failed:", bad, "of", len(specs))
    # 2. the tests, each in its share of a dozen processes
    if not a.no_tests:
        collect = lambda marks, *rest: [x for x in subprocess.run([sys.executable, "-m", "pytest", "-q", "--collect-only", "-m", marks, *rest], capture_output=True, text=True, env=ENV).stdout.split("\n") if "::" in x]
        ids = collect("gpu", "tests/test_attention_hopper.py") + collect("gpu and numeric", "tests/test_attention_gpu.py") + collect("gpu", "tests/test_attention_gpu.py", "-k", "bits or compiled or autocast or checkpointing or linear")
        say("tests:", len(ids))
        result, todo, until = {}, ids, time.time() + 130
        while todo and time.time() < until:
            shares = [todo[i::a.width] for i in range(a.width)]
            jobs = {f"share {i} {len(todo)}": [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider", "--timeout=60", "--timeout-method=thread", *s] for i, s in enumerate(shares) if s}
            for name, text, hung in pool(jobs, a.width, 125, until):
                Path(a.out, "tests.txt").open("a").write(text)
                started = re.findall(r"^(tests/\S+::.*?) (PASSED|FAILED|ERROR|SKIPPED)", text, re.M)
                result |= dict(started)
                begun = re.findall(r"^(tests/\S+::\S.*)$", text, re.M)
                if begun and ("Timeout" in text or hung) and not re.search(r"(PASSED|FAILED|ERROR|SKIPPED)", begun[-1]):
                    result[begun[-1].split("  ")[0].strip()] = "HANG"
                for line in re.findall(r"^E  .*$", text, re.M)[:6]: print("   ", line[:220])
            before = len(todo)
            todo = [x for x in todo if x not in result]
            if len(todo) == before: break
        count = {}
        for x in result.values(): count[x] = count.get(x, 0) + 1
        say("tests:", count, "not run:", len(todo))
        for x, r in result.items():
            if r not in ("PASSED", "SKIPPED"): print("   ", r, x)
    # 3. times beside the others, then tiles
    watched("times", a.out, a.rounds, end - 0.3 * (end - time.time()), 100)
    watched("tiles", a.out, 2, end, 45)
    summary(a.out)
    say("done")


if __name__ == "__main__":
    main()
