"""IPython and Jupyter: ``%load_ext frameworktax``, then ``%%tax`` on top of a cell."""

from __future__ import annotations

import ast
from inspect import CO_COROUTINE
from typing import Any

from frameworktax.block import NAMED, Block

AWAITS = (
    "%%tax measures no cell that awaits; write 'with ft.tax(\"name\") as block:' in it instead, "
    "then print(block)"
)


def load_ipython_extension(ipython: Any) -> None:
    """Register ``%%tax``; from now on every cell begins with no named block.

    Args:
        ipython: an ``InteractiveShell``.
    """
    from IPython.core.magic import output_can_be_silenced

    @output_can_be_silenced  # type: ignore[untyped-decorator]  # IPython is not followed
    def tax(line: str, cell: str) -> Any:
        """Measure the framework tax of a cell, and of blocks named in it: ``%%tax [name]``."""
        return run(ipython, line.strip() or "cell", cell)

    ipython.register_magic_function(tax, magic_kind="cell", magic_name="tax")
    ipython.events.register("pre_run_cell", _forget)


def run(ipython: Any, name: str, cell: str) -> Any:
    """Run a cell as one block, show what it cost, and return the value of its last expression.

    An exception of the cell is raised after what was measured until then is shown.

    Raises:
        UsageError: the cell awaits something outside of functions.
    """
    from IPython.core.error import UsageError
    from IPython.display import display

    source = ipython.transform_cell(cell)
    file = ipython.compile.cache(source)  # so that a traceback shows the cell's lines
    tree = ipython.compile.ast_parse(source, filename=file)
    code = compile(tree, file, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & CO_COROUTINE:
        raise UsageError(AWAITS)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    body = ipython.compile(tree, file, "exec")
    value = None if last is None else ipython.compile(ast.Expression(last.value), file, "eval")
    block = Block(name)
    try:
        with block:
            exec(body, ipython.user_ns)
            return value and eval(value, ipython.user_ns)
    finally:
        display(block.result(), *(inner.result() for inner in NAMED.values()))


def _forget(*_: object) -> None:
    NAMED.clear()
