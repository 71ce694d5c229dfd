"""How the task `jsonl` grades replies: one grader per file.

`line` is a line of the user's file, `grader` the interface and the grader of short answers;
`json_fields`, `regex`, `python_function`, `unit_tests` and `judge` are the others. `labels` reads
people's verdicts on what a judge has judged.
"""
