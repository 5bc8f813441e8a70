"""Run pytest as on a processor without AVX-512: first with OpenBLAS's kernels for it, then with NumPy's.

``python tests/without_avx512.py -n auto tests/cca``: arguments are pytest's.
"""

import os
import platform
import subprocess
import sys

import numpy as np

# Prints the kernels that every OpenBLAS chose: NumPy's, SciPy's and FAISS's own.
BLAS = """
import threadpoolctl, numpy, scipy.linalg, faiss
found = threadpoolctl.threadpool_info()
print(*{each["architecture"] for each in found if each["internal_api"] == "openblas"})
"""
SIMD = "import without_avx512; print(*without_avx512.avx512())"


def extensions():
    """Names of the instruction sets that NumPy uses here."""
    known = np.show_config(mode="dicts")["SIMD Extensions"]
    return [*known.get("baseline", []), *known.get("found", [])]


def avx512():
    """Those of AVX-512, as this NumPy names them."""
    return [name for name in extensions() if name.startswith(("AVX512", "X86_V4"))]


def run(arguments, settings, program, expected):
    """Run pytest with settings of the environment; a program's output shows that they have an effect."""
    print(" ".join(f'{name}="{value}"' for name, value in settings.items()), flush=True)
    environment = {**os.environ, **settings}
    shown = subprocess.run(
        [sys.executable, "-c", program],
        cwd=os.path.dirname(os.path.abspath(__file__)),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if shown != expected:
        sys.exit(f"These settings have no effect: expected {expected!r}, got {shown!r}.")
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment).returncode


def main(arguments):
    if not {"AVX2", "X86_V3"} & set(extensions()):
        print(f"Skipped: this processor ({platform.machine()}) has no AVX2.")
        return 0
    kernels = {"OPENBLAS_CORETYPE": "Haswell"}
    others = {"FAISS_SIMD_LEVEL": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}  # FAISS's own and torch's
    failed = run(arguments, kernels | others, BLAS, "Haswell")
    if names := " ".join(avx512()):
        failed |= run(arguments, {"NPY_DISABLE_CPU_FEATURES": names}, SIMD, "")
    else:
        print("Skipped: NumPy uses no AVX-512 on this processor anyway.")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
