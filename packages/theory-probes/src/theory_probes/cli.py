"""The command `theory-probes`: one sub-command a paper, imported only when it is called."""

from importlib import import_module

import typer

PAPERS = {
    "constraint-layers": "Make scores obey linear rules.",
}

app = typer.Typer(
    help="Layers, probes and design algorithms from ICML 2026, for your own model.",
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
        module = import_module(f"theory_probes.{paper.replace('-', '_')}.cli")
        module.app(args=context.args, prog_name=f"theory-probes {paper}")


for _paper, _purpose in PAPERS.items():
    _mount(_paper, _purpose)


def main() -> None:
    app()
