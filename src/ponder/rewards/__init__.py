"""Process rewards: each scores the steps of a reasoning trace. One adapter per file.

    from ponder.core.scoring import scored
    from ponder.rewards.qwen import Qwen
    from ponder.traces import read, steps

    reward = Qwen(id="Qwen/Qwen2.5-Math-PRM-7B", device="cuda", dtype="bfloat16")
    traces = (steps(trace) for trace in read(Path("traces.jsonl")))
    for scores in scored(reward, traces):
        scores.steps, scores.trajectory, scores.total

An adapter with weights says how a trace becomes tokens and at which token each step's score is
read. `_weights` does the rest: it divides long traces into windows, batches them by length, and
runs the model.
"""
