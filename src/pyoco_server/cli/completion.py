"""Completion of commands and options in bash, zsh and fish, for each of our programs."""

from typing import Literal

import cyclopts

Shell = Literal["bash", "zsh", "fish"]


def add_completion(app: cyclopts.App) -> None:
    """Adds `--install-completion` and `--show-completion SHELL`."""

    def show_completion(shell: Shell, /) -> None:
        """Print the completion script of a shell: bash, zsh or fish.

        Parameters
        ----------
        shell
            The shell it is for.
        """
        print(app.generate_completion(shell=shell))

    app.register_install_completion_command(
        help="Install completion for your shell (bash, zsh or fish) and switch it on in its startup file."
    )
    app.command(show_completion, name="--show-completion")
