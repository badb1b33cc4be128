"""The command `mechanism-design`: one sub-command a paper, imported only when it is called."""

from importlib import import_module

import typer

PAPERS: dict[str, str] = {
    "rcb": "Recommend so that people have a reason to follow while you still learn.",
    "welfare-auction": "Price who a classifier is right about, so that nobody gains by lying.",
}

app = typer.Typer(
    help="Learning where people respond to incentives: truthful accuracy auctions and other "
    "mechanisms.",
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
        module = import_module(f"mechanism_design.{paper.replace('-', '_')}.cli")
        module.app(args=context.args, prog_name=f"mechanism-design {paper}")


for _paper, _purpose in PAPERS.items():
    _mount(_paper, _purpose)


def main() -> None:
    app()
