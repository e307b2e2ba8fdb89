"""The sanitizer on whole matrix products: silent on right ones, finds what an edit breaks, whatever the policy."""
from __future__ import annotations

import pytest
from sanitized import gemm, kinds

POLICIES = (("round_robin", 0), ("random", 1), ("adversarial", 0), ("adversarial", 1))


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name,ctas", [("cooperative", 2), ("pingpong", 2), ("cluster2", 2), ("cluster4", 4), ("tall", 2)])
def test_right_kernels_have_no_findings(name: str, ctas: int, policy: str, seed: int) -> None:
    gemm(name, 512, 512, 320, ctas, policy, seed).check()


EDITS = {
    "output staged without a proxy fence": ([(r"(bar.sync %r53, 128;\n(?:(?!bar.sync)[\s\S])*?)fence.proxy.async.shared::cta;", r"\1")],
                                            "proxy-fence"),
    "no wgmma.fence after the wait": ([(r"wgmma.fence.sync.aligned;", "")], "wgmma-fence"),
    "slot released one wgmma too early": ([(r"wait_group.sync.aligned 1", "wait_group.sync.aligned 2")], "slot-overwritten"),
    "accumulator read early": ([(r"wgmma.wait_group.sync.aligned 0;", "")], "wgmma-registers"),
}


@pytest.mark.parametrize("policy,seed", POLICIES)
@pytest.mark.parametrize("name", EDITS)
def test_edited_kernels(name: str, policy: str, seed: int) -> None:
    edits, kind = EDITS[name]
    assert kind in kinds(gemm("cooperative", 256, 512, 512, 1, policy, seed, edits))
