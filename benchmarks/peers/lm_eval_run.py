"""lm-eval on the same prompts: its client for chat endpoints, a task from a local file, exact match
on the tag.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Nothing is looked up, and nothing kept between runs.
os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HOME": str(Path("hf").absolute()),
}
os.environ["OPENAI_API_KEY"] = "none"

TASK = """
task: chain_sum
dataset_path: json
dataset_kwargs: {{data_files: {prompts}}}
test_split: train
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{tagged}}}}"
generation_kwargs: {{max_gen_toks: 4096, until: []}}
filter_list:
- name: tag
  filter: [{{function: regex, regex_pattern: "(<answer>.*?</answer>)"}}, {{function: take_first}}]
metric_list:
- {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""

if __name__ == "__main__":
    url, concurrency, prompts = sys.argv[1:]
    Path("chain_sum.yaml").write_text(TASK.format(prompts=prompts))
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    settings = f"model=served,base_url={url}/chat/completions"
    settings += f",num_concurrent={concurrency},tokenized_requests=False"
    result = simple_evaluate(
        model="local-chat-completions",
        model_args=settings,
        tasks=["chain_sum"],
        task_manager=TaskManager(include_path=".", include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    assert result
    print(result["results"]["chain_sum"]["exact_match,tag"])
