"""How the weights that ship with Ponder were made: the pocket models and the pocket rewards. Needs PyTorch."""

from importlib.util import find_spec

from ponder.core import UserError

if find_spec("torch") is None:
    raise UserError("making weights needs PyTorch, which isn't installed", hint="pip install 'ponder-lab[torch]'")
