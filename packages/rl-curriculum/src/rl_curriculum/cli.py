"""The command `rl-curriculum`: one sub-command a paper, imported only when it is called."""

from importlib import import_module

import typer

PAPERS = {
    "gtpo": "Credit tokens and responses by entropy.",
    "pace": "Train on the levels that still move the policy.",
}

app = typer.Typer(
    help="What a reinforcement learner sees next and is credited for: ICML 2026 methods.",
    no_args_is_help=True,
)


@app.callback()
def _root() -> None:
    pass


def _mount(paper: str, purpose: str) -> None:
    @app.command(
        paper,
        help=purpose,
        add_help_option=False,
        context_settings={
            "allow_extra_args": True,
            "allow_interspersed_args": False,
            "ignore_unknown_options": True,
        },
    )
    def forward(context: typer.Context) -> None:
        module = import_module(f"rl_curriculum.{paper.replace('-', '_')}.cli")
        module.app(args=context.args, prog_name=f"rl-curriculum {paper}")


for _paper, _purpose in PAPERS.items():
    _mount(_paper, _purpose)


def main() -> None:
    app()
