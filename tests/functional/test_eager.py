"""Shortcuts are left to plain eager execution."""

import torch

from imitate.functional.eager import is_eager


def test_plain_code_is_eager_and_transformed_or_traced_code_is_not(monkeypatch):
    found = []

    def noted(x):
        found.append(is_eager())
        return x * 2

    noted(torch.ones(2))
    torch.func.vmap(noted)(torch.ones(2))
    torch.func.grad(lambda x: noted(x).sum())(torch.ones(2))
    torch.jit.trace(noted, torch.ones(2), check_trace=False)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    noted(torch.ones(2))
    assert found == [True, False, False, False, False]
