"""Process rewards: a score for each step of a trace, one adapter a file.

    from ponder.rewards.qwen import Qwen
    from ponder.traces import read, steps

    reward = Qwen(id="Qwen/Qwen2.5-Math-PRM-7B", device="cuda", dtype="bfloat16")
    for scores in reward.scored(steps(trace) for trace in read(Path("traces.jsonl"))):
        scores.steps, scores.trajectory, scores.total

`_weights` holds what the adapters with weights share: they say what a trace looks like in tokens and where in it each
step's score is read; it cuts long traces, sorts by length, and runs the batches.
"""
