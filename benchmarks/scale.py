"""What every step costs at 10⁵, 10⁷ and 10⁹ pairs, from what the other benchmarks measured.

Nothing is timed here: rates are read from ``results/``, and prices are assumptions, stated in the output.
"""

from __future__ import annotations

import json
import re

from measuring import RESULTS, record

CAPTIONS, WIDTH_X, WIDTH_Y, COMPONENTS = 5, 2048, 2000, 512
SIZES = (10**5, 10**7, 10**9)
CORE_HOUR, CARD_HOUR = 0.04, 4.0  # dollars, a rented core and a rented H200
STORED, HELD = 0.023, 3.0  # dollars a month for a gigabyte of object storage and of memory


def read_rows(name: str) -> list[dict]:
    """Return the table of another benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["rows"]


def parse_number(text: str) -> float:
    """Return the first number of a text."""
    return float(re.search(r"[\d.,]+", str(text)).group().replace(",", ""))


def parse_pairs(row: dict) -> tuple[float, float]:
    """Return the images and captions of a row."""
    images, captions = row["images × captions"].split("×")
    return parse_number(images), parse_number(captions)


def count_flops(images: float, captions: float) -> float:
    """Return the multiplications and additions of the three products, with the symmetry of two of them."""
    return images * WIDTH_X**2 + captions * WIDTH_Y**2 + 2 * images * WIDTH_X * WIDTH_Y


def format_size(value: float, unit: str = "") -> str:
    """Return a number with the prefix of its magnitude."""
    for scale, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def format_seconds(seconds: float) -> str:
    """Return seconds in the unit that reads best."""
    for scale, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * scale:
            value = seconds / scale
            return f"{value:.2g} {unit}" if value < 100 else f"{value:.0f} {unit}"
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:.0f} s"


def format_dollars(value: float) -> str:
    """Return a price."""
    return f"${value:,.0f}" if value >= 10 else f"${value:.2g}" if value >= 0.01 else "under 1 ¢"


def main() -> None:
    core = read_rows("out_of_core")[-1]
    card = next(row for row in read_rows("streaming_gpu")[::-1] if row["products"] == "float32")
    core_rate = count_flops(*parse_pairs(core)) / parse_number(core["pass, s"]) / 2  # of one core
    # The card's products do not use symmetry: what it needs for n pairs is known by its own count.
    card_flops = parse_number(card["TFLOP/s"]) * 1e12
    images_rate = max(
        parse_number(value)
        for row in read_rows("encode_images")
        for column, value in row.items()
        if "thumbnails" in row["encoding"] and column.endswith("per second")
    )
    captions_rate = parse_number(read_rows("hkse_stream")[0]["captions per s"])
    exact = next(row for row in read_rows("search_speed") if row["search"] == "index")
    one_query = parse_number(exact["one query"]) / 1e3 / 1e5  # seconds a vector of 512, two cores
    batch = parse_number(exact["batch of 1,000"]) / 1e3 / 1e3 / 1e5

    table = []
    for n in SIZES:
        images, work = n / CAPTIONS, count_flops(n / CAPTIONS, n)
        stored = 2 * (images * WIDTH_X + n * WIDTH_Y)
        doubled = 2 * (images * WIDTH_X**2 + n * WIDTH_Y**2 + images * WIDTH_X * WIDTH_Y)
        projected = 2 * COMPONENTS * (images * WIDTH_X + n * WIDTH_Y)
        steps = {
            "encode images (ResNet-50, ONNX)": (None, None, 2 * images / images_rate, None),
            "encode captions (HKSE)": (None, None, 2 * n / captions_rate, None),
            "features, float16": (None, stored, None, None),
            "the pass": (work, None, work / core_rate, doubled / card_flops),
            "embed everything": (projected, None, projected / core_rate, projected / card_flops),
            "vectors, float32": (None, 4 * COMPONENTS * (images + n), None, None),
        }
        read, core_seconds_of_pass, card_seconds_of_pass = stored, work / core_rate, doubled / card_flops
        for step, (flops, size, core_seconds, card_seconds) in steps.items():
            price = ""
            if step.startswith("features"):
                price = f"{format_dollars(size / 1e9 * STORED)} a month"
            elif step.startswith("vectors"):
                price = f"{format_dollars(size / 1e9 * HELD)} a month in memory"
            elif core_seconds is not None:
                price = format_dollars(core_seconds / 3600 * CORE_HOUR)
                if card_seconds is not None:
                    price += f"; {format_dollars(card_seconds / 3600 * CARD_HOUR)} on a card"
            table.append(
                {
                    "pairs": f"10^{len(str(n)) - 1}",
                    "step": step,
                    "FLOP": "" if flops is None else format_size(flops),
                    "bytes": "" if size is None else format_size(size, "B"),
                    "one core": "" if core_seconds is None else format_seconds(core_seconds),
                    "100 cores": "" if core_seconds is None else format_seconds(core_seconds / 100),
                    "one H200": "" if card_seconds is None else format_seconds(card_seconds),
                    "money": price,
                }
            )
    record(
        "scale_fit",
        table,
        f"Five captions an image, {WIDTH_X} × {WIDTH_Y} features, {COMPONENTS} components kept. Rates: "
        f"{core_rate / 1e9:.0f} GFLOP/s a core in a pass (out_of_core.json), {card_flops / 1e12:.1f} TFLOP/s "
        f"on the card (streaming_gpu.json, which counts products without symmetry), {images_rate / 2:.1f} "
        f"images and {captions_rate / 2:,.0f} captions a second a core (encode_images.json, "
        "hkse_stream.json). What follows the pass (two eigendecompositions, selection, models) does not "
        f"depend on the number of pairs. The pass asks {read / core_seconds_of_pass / 1e6:.0f} MB/s of the "
        f"storage for each core and {read / card_seconds_of_pass / 1e9:.0f} GB/s for the card. Prices are "
        f"assumptions: ${CORE_HOUR} a core-hour, ${CARD_HOUR:.0f} an H200-hour, ${STORED} and ${HELD:.0f} "
        "a month for a gigabyte stored and held in memory.",
    )

    server = {r["index"]: r for r in read_rows("postgresql") if r["vectors"].startswith("generated")}
    graph, plain = server["PostgreSQL, HNSW"], server["PostgreSQL, exact"]
    held = parse_number(graph["vectors"].partition(",")[2])
    vectors = []
    for n in SIZES:
        vectors.append(
            {
                "vectors": f"10^{len(str(n)) - 1}",
                "float32": format_size(4 * COMPONENTS * n, "B"),
                "one query, exact, in memory, 2 cores": format_seconds(one_query * n),
                "the same in a batch of 1,000": format_seconds(batch * n),
                "one query, exact, PostgreSQL": format_seconds(
                    n / held / parse_number(plain["queries a second"])
                ),
                "loaded by COPY": format_seconds(n / parse_number(plain["items a second"])),
                "with a graph": format_seconds(n / parse_number(graph["items a second"])),
                "on disk with it": format_size(parse_number(graph["on disk"]) * 1e6 * n / held, "B"),
            }
        )
    record(
        "scale_search",
        vectors,
        f"{COMPONENTS} columns; extrapolated linearly from {held:,.0f} vectors (search_speed.json, "
        f"postgresql.json). A graph takes somewhat more than linear time to build, and its queries grow with "
        f"the logarithm of the vectors: {graph['queries a second']} a second at this size on one connection, "
        f"{graph['of the 10 best']} of the ten best.",
    )

    small, large = read_rows("out_of_core")[0], read_rows("out_of_core")[-1]
    first, last = (
        next(r for r in order if r["products"] == "float32")
        for order in (read_rows("streaming_gpu"), read_rows("streaming_gpu")[::-1])
    )
    checks = []
    for where, low, high in (("2 cores, from disk", small, large), ("H200, from host memory", first, last)):
        growth = parse_pairs(high)[1] / parse_pairs(low)[1]
        extrapolated, measured = parse_number(low["pass, s"]) * growth, parse_number(high["pass, s"])
        checks.append(
            {
                "pass": where,
                "from": low["images × captions"],
                "to": high["images × captions"],
                "extrapolated": format_seconds(extrapolated),
                "measured": format_seconds(measured),
                "off by": f"{100 * (extrapolated - measured) / measured:+.0f} %",
            }
        )
    record("scale_check", checks, "The smallest run of a kind, multiplied, beside its largest.")


if __name__ == "__main__":
    main()
