"""Damage data files at random and read each of them; run as a program.

Arguments: a folder to work in, how many files to damage, a seed. Prints JSON: how many files were refused,
how many were read, any other errors, and the memory that reading took.
"""

import json
import random
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from diptych import InputError
from diptych.cca import Moments
from diptych.data import open_features, read_pairs, shards
from diptych.encoders import read_word_vectors
from retrieval.damaging import change_bytes, change_json, peak_memory

ROWS = [{"image": f"{i % 9}.png", "caption": f"caption {i} of an image", "split": "train"} for i in range(30)]


def read_shards(path):
    blocks = shards(str(path), str(path), rows=10)
    return [block.load() for block in blocks]


def write_files(folder):
    """Write one file of each format; return the reader of each."""
    import h5py
    import pyarrow
    import pyarrow.parquet
    from safetensors.numpy import save_file

    matrix = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    np.save(folder / "a.npy", matrix)
    np.savez(folder / "b.npz", matrix=matrix)
    save_file({"matrix": matrix}, folder / "c.safetensors")
    with h5py.File(folder / "d.h5", "w") as file:
        file["matrix"] = matrix
    np.savez_compressed(folder / "packed.npz", matrix=matrix)
    with h5py.File(folder / "packed.h5", "w") as file:
        file.create_dataset("matrix", data=matrix, chunks=(2, 5), compression=4)
    Moments.of(matrix, matrix).save(folder / "f.moments")
    table = pyarrow.Table.from_pylist(ROWS)
    pyarrow.parquet.write_table(table, folder / "g.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"x": matrix.tolist()}), folder / "h.parquet")
    (folder / "i.csv").write_text(
        "image,caption,split\n" + "".join(f"{','.join(r.values())}\n" for r in ROWS)
    )
    (folder / "j.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    sentences = [{"raw": row["caption"], "sentid": i, "imgid": 0} for i, row in enumerate(ROWS)]
    images = [{"filename": "a.png", "imgid": 0, "split": "train", "sentences": sentences}]
    (folder / "dataset_k.json").write_text(json.dumps({"images": images, "dataset": "k"}))
    words = "".join(f"word{i} {' '.join(map(str, row))}\n" for i, row in enumerate(matrix))
    (folder / "l.txt").write_text(f"{len(matrix)} 6\n{words}")
    binary = b"".join(f"word{i} ".encode() + row.tobytes() + b"\n" for i, row in enumerate(matrix))
    (folder / "m.bin").write_bytes(f"{len(matrix)} 6\n".encode() + binary)
    special = {
        "f.moments": Moments.load,
        "h.parquet": read_shards,
        **dict.fromkeys(("g.parquet", "i.csv", "j.jsonl", "dataset_k.json"), read_pairs),
        **dict.fromkeys(("l.txt", "m.bin"), read_word_vectors),
    }
    return {path: special.get(path.name, open_features) for path in sorted(folder.iterdir())}


def main(folder, count, seed):
    readers = write_files(folder)
    whole = {path: path.read_bytes() for path in readers}
    for path, read in readers.items():
        read(path)
    first_peak, wrong, refused = peak_memory(), [], 0
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        path = rng.choice(list(readers))
        content = whole[path]
        if path.suffix == ".json" and rng.random() < 0.5:
            content = json.dumps(change_json(json.loads(content), rng)).encode()
        for _ in range(rng.choice([1, 1, 2, 4]) if content is whole[path] else 0):
            content = change_bytes(content, rng) or b"\0"
        path.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                content = readers[path](path)
                np.array(content) if isinstance(content, np.ndarray) else content
        except InputError as error:
            refused += 1
            if "\n" in str(error):
                wrong.append([number, path.name, f"more than one line: {str(error)[:500]}"])
        except Exception:
            wrong.append([number, path.name, traceback.format_exc()[-1500:]])
        path.write_bytes(whole[path])
    memory = peak_memory() - first_peak
    print(json.dumps({"refused": refused, "read": count - refused, "memory": memory, "wrong": wrong[:20]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
