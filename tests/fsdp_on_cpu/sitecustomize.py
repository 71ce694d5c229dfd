"""Makes accelerate shard weights on a CPU too, where it otherwise ignores FSDP.

On the path of training processes, with ACCELERATE_TORCH_DEVICE=cpu, it stands in for GPUs: gloo
connects the processes, and accelerate takes them for devices that can share a model.
"""

import transformers.training_args
from accelerate.state import PartialState
from accelerate.utils import DistributedType

PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_GPU)
transformers.training_args.is_torch_bf16_gpu_available = lambda: True
