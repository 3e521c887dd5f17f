"""Many small trials under two runs at once, and a sweep that is edited, on a real Ray."""

from pathlib import Path

import pytest

from tests.orchestrator.desk import Desk, end

pytestmark = [pytest.mark.ray, pytest.mark.slow]
MANY = """
base: {{n_layer: 1, d_model: 8, n_head: 1, d_head: 8, tokenizer: bytes, xsa_lambda: 0, steps: {steps},
       seq_len: 8, tokens_per_step: 8, eval_tokens: 8, bias_tokens: 8}}
grid: {{seed: [{seeds}]}}
"""


def many(n: int, steps: int = 1) -> str:
    return MANY.format(steps=steps, seeds=", ".join(map(str, range(n))))


def test_two_runs_share_two_hundred_trials_and_an_edit_trains_only_what_is_new(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "many", many(200))
    runs = [desk.start(), desk.start()]
    outputs = [end(run, 0) for run in runs]
    assert desk.counts("SELECT status, count(*) FROM arm GROUP BY status") == {"done": 200}
    share = desk.counts("SELECT owner, count(*) FROM attempt GROUP BY owner")
    assert len(share) == 2
    assert sum(share.values()) == 200  # none twice
    assert any("200 arms done, 0 to do" in output for output in outputs)

    desk.write(many(202))
    planned = desk.run("plan", "small.yaml")
    assert "+2 arms" in planned
    assert "2 new, 200 done" in planned
    assert "202 arms done, 0 to do" in desk.run()
    assert len(desk.attempts()) == 202

    desk.write(many(3, steps=2))
    planned = desk.run("plan", "small.yaml")
    assert "+3 arms, 202 no longer wanted (kept)" in planned
    assert "steps 1 → 2 in 3 arms: trained from the beginning" in planned
