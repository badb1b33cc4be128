"""The command `llm-systems`: one sub-command a paper, imported only when it is called."""

from importlib import import_module

import typer

PAPERS: dict[str, str] = {
    "slidesparse": "Mild structured sparsity, such as 6:8, on 2:4 hardware, CPUs and in vLLM.",
}

app = typer.Typer(
    help="Language models made smaller and faster: methods from ICML 2026.", no_args_is_help=True
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
        module = import_module(f"llm_systems.{paper.replace('-', '_')}.cli")
        module.app(args=context.args, prog_name=f"llm-systems {paper}")


for _paper, _purpose in PAPERS.items():
    _mount(_paper, _purpose)


def main() -> None:
    app()
