"""`serve`: one model behind one address."""

from pathlib import Path
from typing import Annotated

import typer

from armillary import terminal
from armillary.cli.app import app, load_world
from armillary.terminal import guarded, say

Served = Annotated[str, typer.Argument(help="pocket, a folder, or a hub name.")]
Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(help="The port; 0 takes a free one.", min=0, max=65535)]
Key = Annotated[
    str | None, typer.Option(envvar="ARMILLARY_API_KEY", help="Ask for this key on every route but /health.")
]
KeyFile = Annotated[Path | None, typer.Option(help="A file of such keys, one a line.")]
Open = Annotated[bool, typer.Option("--open-to-all", help="Listen on a public address without a key.")]
Root = Annotated[Path | None, typer.Option(help="Read file: references below this folder.")]
Allowed = Annotated[
    list[str] | None, typer.Option(help="Fetch pictures and clips from this host; may be repeated.")
]
Robot = Annotated[
    str | None,
    typer.Option(help="The robot that is meant where a request names none: a name, a file, a data set."),
]
Kept = Annotated[
    Path | None, typer.Option(help="Where jobs and uploads are kept.  [default: ~/.local/state/armillary]")
]
Hours = Annotated[float, typer.Option(help="How long they are kept.", min=0.01)]
Body = Annotated[int, typer.Option(help="Largest request, in MiB.", min=1)]
Disk = Annotated[int, typer.Option(help="Room for jobs, and as much for uploads, in MiB.", min=1)]
Jobs = Annotated[int, typer.Option(help="Ended jobs that are kept at most.", min=1)]
Waiting = Annotated[int, typer.Option(help="Requests that may wait; more are refused with 503.", min=1)]
Grace = Annotated[float, typer.Option(help="How long what is under way may go on after a stop.", min=0)]
Tokens = Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)]


@app.command()
@guarded
def serve(
    model: Served = "pocket",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    api_key: Key = None,
    api_key_file: KeyFile = None,
    open_to_all: Open = False,
    root: Root = None,
    allow_host: Allowed = None,
    domain: Robot = None,
    folder: Kept = None,
    keep_hours: Hours = 24,
    max_body: Body = 64,
    max_tokens: Tokens = 4096,
    max_disk: Disk = 2048,
    max_jobs: Jobs = 1000,
    max_waiting: Waiting = 128,
    grace_seconds: Grace = 30,
    device: terminal.Device = "auto",
    dtype: terminal.Dtype = "auto",
    memory: terminal.Memory = None,
    weights: terminal.Weights = None,
    adapter: terminal.Adapter = None,
    guard: terminal.Guarding = None,
) -> None:
    """Serve a model: an OpenAI-shaped API, and a page.

    The page is at the address that is printed; robots connect to a web socket there.

    \b
    armillary serve pocket
    armillary serve nvidia/Cosmos3-Nano --host 0.0.0.0 --api-key-file keys.txt
    """
    from armillary.serve.app import create_app
    from armillary.serve.run import address_of, listen, run
    from armillary.serve.settings import MIB, Settings, check_public, default_folder, names_of, read_keys
    from armillary.tasks.ready import own_robot

    keys = read_keys(api_key, api_key_file)
    check_public(host, keys=keys, open_to_all=open_to_all)
    settings = Settings(
        folder or default_folder(),
        keys=keys,
        root=root and root.resolve(),
        hosts=tuple(allow_host or ()),
        names=names_of(host),
        domain=own_robot(domain) or domain,
        max_body=max_body * MIB,
        max_tokens=max_tokens,
        max_disk=max_disk * MIB,
        max_jobs=max_jobs,
        max_waiting=max_waiting,
        keep_s=keep_hours * 3600,
        grace_s=grace_seconds,
    )
    with listen(host, port) as sock:
        world = load_world(
            model, adapter=adapter, device=device, dtype=dtype, memory=memory, weights=weights, guard=guard
        )
        run(create_app(world, settings), sock, lambda: say(address_of(sock)))
