"""What plugins import: the nouns, the interfaces, errors, and hashes.

    from ponder.core import Grade, Problem, Task

Nothing in this folder imports from the rest of the package.
"""

from ponder.core.capabilities import (
    Addends,
    CheckedSteps,
    ChecksPrompts,
    Codec,
    ComparesAnswers,
    Conversation,
    Drawable,
    Fidelity,
    Forecast,
    FromLog,
    Limit,
    Measuring,
    ParsesAnswers,
    Prepared,
    Prunable,
    Sampled,
    Served,
    SlowGrading,
    WithCodec,
    WithWarning,
    WithWeights,
    require,
)
from ponder.core.contracts import (
    Method,
    Model,
    Plugin,
    Task,
    TrainingProblems,
    not_in_key,
    renamed,
)
from ponder.core.drawing import Drawing, Mark
from ponder.core.errors import ModelFailure, UserError, error_at
from ponder.core.figure import Figure, ModelLabel
from ponder.core.jsonl import lines
from ponder.core.keys import digest, fingerprint, seed_from, weights_fingerprint
from ponder.core.nouns import (
    Attempt,
    Bill,
    Completion,
    CountedBy,
    Estimate,
    Grade,
    Memory,
    Message,
    MethodUse,
    Observer,
    Outcome,
    Part,
    Prices,
    Problem,
    Progress,
    Records,
    Remember,
    Request,
    Retry,
    Role,
    Scores,
    Source,
    Spend,
    Status,
    Steps,
    Tables,
    TokenKind,
    TokenTrace,
    TurnLimit,
    token_limit,
)
from ponder.core.scoring import (
    Asking,
    AsyncScore,
    CacheBudget,
    Fitted,
    InMemory,
    KeepsAll,
    LengthReward,
    Policy,
    RatesEach,
    Reward,
    Trainable,
    TrainedPerStudy,
)
from ponder.core.secrets import EnvVar
from ponder.core.wrapped import Wrapped

__all__ = [
    "Addends", "Asking", "AsyncScore", "Attempt", "Bill", "CacheBudget", "CheckedSteps", "ChecksPrompts", "Codec",
    "ComparesAnswers", "Completion", "Conversation", "CountedBy", "Drawable", "Drawing", "EnvVar", "Estimate",
    "Fidelity", "Figure", "Fitted", "Forecast", "FromLog", "Grade", "InMemory", "KeepsAll", "LengthReward", "Limit",
    "Mark", "Measuring", "Memory", "Message", "Method", "MethodUse", "Model", "ModelFailure", "ModelLabel",
    "Observer", "Outcome", "ParsesAnswers", "Part", "Plugin", "Policy", "Prepared", "Prices", "Problem", "Progress",
    "Prunable", "RatesEach", "Records", "Remember", "Request", "Retry", "Reward", "Role", "Sampled", "Scores",
    "Served", "SlowGrading", "Source", "Spend", "Status", "Steps", "Tables", "Task", "TokenKind", "TokenTrace",
    "Trainable", "TrainedPerStudy",
    "TrainingProblems", "TurnLimit", "UserError", "WithCodec", "WithWarning", "WithWeights", "Wrapped", "digest",
    "error_at", "fingerprint", "lines", "not_in_key", "renamed", "require", "seed_from", "token_limit",
    "weights_fingerprint",
]  # fmt: skip
