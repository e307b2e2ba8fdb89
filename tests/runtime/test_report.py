"""Lines of the report as records: kinds and numbers, in the cache too."""
import copy
import json
import pickle

import ml_dtypes
import numpy as np

import tilejit
import tilejit.language as tl
from tilejit.ir.report import Record


@tilejit.kernel
def product(a_desc, b_desc, c_desc, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([0, k * BK]), b_desc.load([0, k * BK]).T, acc)
    c_desc.store([0, 0], acc.to(c_desc.dtype))


def compiled(**options):
    a = np.zeros((64, 256), ml_dtypes.bfloat16)
    desc = tilejit.TensorDescriptor.from_tensor(a, [64, 64])
    return product.compile(desc, desc, desc, 256, 64, 64, 64, **options)


def test_kinds_and_numbers_say_what_lines_say():
    k = compiled(num_stages=4)
    by_kind = {r.kind: r for r in k.report_lines}
    ring = by_kind["ring"]
    assert ring.numbers == {"slots": 4, "bytes": 16384, "copies": "tensor"} and ring.at in ring
    assert str(ring).startswith(f"ring {ring.at}: 4 slots x 16384 bytes")
    assert by_kind["specialised"].numbers["producers"] == 1 and by_kind["round_in_flight"].at.startswith("test_report.py:")
    assert by_kind["dependent_launch"] and "remark" not in by_kind
    assert [str(r) for r in k.report_lines] == k.report().split("\n")[1:len(k.report_lines) + 1]


def test_records_survive_the_cache(tmp_path):
    with tilejit.knobs(cache_dir=str(tmp_path)):
        first, again = compiled(num_stages=2), compiled(num_stages=2)
    assert again.from_cache and not first.from_cache
    assert [r.data() for r in again.report_lines] == [r.data() for r in first.report_lines]


def test_a_record_is_its_line():
    r = Record("ring", "ring a: 2 slots", "a", slots=2)
    assert r == "ring a: 2 slots" and f"{r}!" == "ring a: 2 slots!"
    for other in (copy.deepcopy(r), pickle.loads(pickle.dumps(r)), Record.of(json.loads(json.dumps(r.data())))):
        assert other == r and other.data() == r.data()
    assert Record.of("a line").kind == "remark"


def test_warnings_match_kinds():
    k = compiled(num_stages=2)
    assert not k.warnings()
    k.report_lines = (*k.report_lines, Record("pointers", "slow"), Record("ring", "goes through pointers"))
    assert k.warnings() == ["slow"]
