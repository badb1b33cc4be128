"""One side of a benchmark in a process of its own; imports nothing but the standard library.

Called with the benchmark's file, the function to call and the folder of inputs, it calls the
function once for every line on standard input and answers each with one line of JSON.
"""

import importlib.util
import json
import os
import sys
import traceback
from pathlib import Path


def main() -> None:
    file, side, folder = sys.argv[1:4]
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("benchmark", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmark"] = module
    spec.loader.exec_module(module)
    for _ in sys.stdin:
        try:
            answer = {"facts": getattr(module, side)(Path(folder))}
        except BaseException as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
