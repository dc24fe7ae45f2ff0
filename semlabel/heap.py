"""Keeps memory that was freed in the process, for torch on the CPU.

torch allocates every tensor anew, and glibc gives large ones back to the kernel at once: part of the elementwise work
of a forward is then page faults. Knows nothing of models; where there is no glibc it does nothing.
"""

import ctypes
import sys

# mallopt's names for what they bound, from malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
# What a layer makes is smaller; what is larger (gradients of an embedding) would leave holes for good.
_LARGEST_BYTES = 32 << 20
_KEPT_BYTES = 256 << 20
_STEP_BYTES = 64 << 20


def keep_freed_memory() -> None:
    """Serve tensors of up to 32 MiB from memory the process already has. Never raises; calling it again is harmless."""
    if not sys.platform.startswith("linux"):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_MMAP_THRESHOLD, _LARGEST_BYTES)
        set_option(_TRIM_THRESHOLD, _KEPT_BYTES)
        set_option(_TOP_PAD, _STEP_BYTES)
