"""How much memory one call takes at its peak, above what the process held before it.

On a CPU that is resident memory, read from Linux; on a GPU torch's own account. Knows nothing of the call.
"""

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

import torch

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_NOW = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)


def peak_mb(call: Callable[[], object], device: str = "cpu") -> float | None:
    """MB (1e6 bytes) at the peak of `call` above the level before it; None where the system does not tell."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    _give_back_free_memory()
    try:
        reset.write_text("5")  # the high-water mark starts again at the present level
    except OSError:
        call()
        return None
    before_kb = int(_read(_NOW, status))
    call()
    return max(int(_read(_PEAK, status)) - before_kb, 0) * 1024 / 1e6


def _read(pattern: re.Pattern[str], status: Path) -> str:
    found = pattern.search(status.read_text(encoding="ascii", errors="replace"))
    if found is None:
        raise RuntimeError(f"{status} does not say {pattern.pattern}")
    return found[1]


def _give_back_free_memory() -> None:
    # What earlier calls freed but the allocator kept would be used again without showing.
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
