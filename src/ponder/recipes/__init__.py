"""How the weights that ship were made: pocket models and pocket rewards. Needs PyTorch."""

from importlib.util import find_spec

from ponder.core import UserError

if find_spec("torch") is None:
    raise UserError(
        "making weights needs PyTorch, which isn't installed",
        hint="pip install 'ponder-lab[torch]'",
    )
