"""A training loop of one's own: `shardwright launch plan.yaml --local -- loop.py` runs it on every rank."""

import shardwright as sw

with sw.Run.open("plan.yaml") as run:
    for batch in run.batches():
        loss = run.step(batch)
        if run.rank == 0:
            print(f"step {run.steps_done}: {loss:.4f}")
        if run.steps_done == 3:
            break
    run.save()
