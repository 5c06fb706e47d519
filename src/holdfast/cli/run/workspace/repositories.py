"""Clones the further repositories of an environment beside the files of a run, with the git of this user."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.errors import command_error
from holdfast.cli.terminal.console import Cell, note

if TYPE_CHECKING:
    from holdfast.api.run.repositories import ClonedRepository
    from holdfast.environments.environment import Repository


@dataclass(frozen=True, slots=True)
class Beside:
    """A clone that becomes a folder of the workspace."""

    folder: Path
    repository: ClonedRepository


def repositories_in(text: str | None) -> tuple[Repository, ...]:
    """Returns the further repositories of an environment."""
    if text is None or "repositories" not in text:
        return ()
    from holdfast.api.errors import HoldfastError
    from holdfast.environments.parsing import parse_environment

    try:
        return parse_environment(text).repositories
    except HoldfastError as error:
        raise command_error(error) from None


def clone_all(wanted: tuple[Repository, ...], home: Path, held: ExitStack, *, quiet: bool) -> tuple[Beside, ...]:
    """Clone repositories. Blocks. `held` removes the clones. Only for a text that its user has allowed."""
    from holdfast.api.errors import HoldfastError
    from holdfast.api.run.repositories import ClonedRepository
    from holdfast.cli.run.workspace.files import MIRRORS
    from holdfast.repositories.address import Address, without_user
    from holdfast.repositories.checkout import check_out
    from holdfast.repositories.mirrors import Mirrors

    mirrors, made = Mirrors(home / MIRRORS, os.environ), []
    for each in wanted:
        try:
            checkout = held.enter_context(check_out(Address(each.url, each.ref, False), mirrors))
        except HoldfastError as error:
            raise command_error(error) from None
        commit = checkout.source.commit
        assert commit is not None
        made.append(
            Beside(checkout.folder, ClonedRepository(path=each.path, url=without_user(each.url), commit=commit))
        )
        if not quiet:
            where = f"  {checkout.source.ref or 'detached'} {commit[:12]}"
            note("repository", without_user(each.url), Cell(f"{where}  in {each.path}", "dim"))
    return tuple(made)
