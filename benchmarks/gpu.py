"""The throughput benchmark on a GPU, with its numbers put into the table that docs/engine.md leaves open.

For a person who has a CUDA device: bf16, every shape and N, the same tuning and exactness columns as on the CPU. Knows
nothing of the benchmark itself, which is `semlabel bench throughput --device cuda`.

    .venv/bin/python benchmarks/gpu.py --model demo/run/labelers/current
"""

import subprocess
import sys
from pathlib import Path

import typer

OUT = Path("benchmarks/results/gpu")


def main(model: str, out: Path = OUT, quick: bool = False) -> None:
    """Measure on the first CUDA device; writes throughput.json, .md and .png to OUT, which are to be committed."""
    import torch

    if not torch.cuda.is_available():
        typer.echo("no CUDA device here: run this on a machine that has one, with a CUDA build of torch", err=True)
        raise typer.Exit(2)
    command = ["-m", "semlabel", "bench", "throughput", "--device", "cuda", "--precision", "bf16", "--model", model]
    finished = subprocess.run(
        [sys.executable, *command, "--out", str(out), *(["--quick"] if quick else [])], check=False
    )
    if finished.returncode == 0:
        typer.echo(f"{torch.cuda.get_device_name()}: the rows for docs/engine.md are in {out}/throughput.md")
    raise typer.Exit(finished.returncode)


if __name__ == "__main__":
    typer.run(main)
