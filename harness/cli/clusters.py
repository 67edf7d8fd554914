"""Commands for clusters by hand, for container images, and for cleaning up after interrupted runs."""

from __future__ import annotations

import os
import sys

import click

from harness.cli.shared import BACKEND, BUILD_OPTIONS, err, note, out, say, with_options
from harness.errors import EXIT_VALID, HarnessError, UsageError
from harness.host import undo
from harness.host.marked_processes import marked_processes
from harness.host.volume import VolumeKind
from harness.kafka.security import ListenerSecurity


@click.group()
def cluster() -> None:
    """Start, show and stop clusters to try things on by hand."""


@cluster.command()
@with_options(BUILD_OPTIONS)
@click.option("--brokers", default=3, show_default=True, type=click.IntRange(1, 12), help="Number of brokers.")
@click.option("--log-dirs", default=2, show_default=True, type=click.IntRange(1, 12), help="Log dirs of each broker.")
@click.option(
    "--controllers", default=1, show_default=True, type=int, metavar="1|3", help="Number of KRaft controllers."
)
@BACKEND
@click.option("--racks", metavar="R1,R2,…", help="broker.rack of each broker, in order.")
@click.option(
    "--volumes", type=click.Choice(["ext4", "xfs", "tmpfs"]), help="Give each log dir a file system of its own (root)."
)
@click.option(
    "--listener-security",
    default=ListenerSecurity.PLAINTEXT.value,
    show_default=True,
    type=click.Choice([each.value for each in ListenerSecurity]),
    help="What protects all listeners; sasl_tls also has users and ACLs.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="A broker setting; may be repeated.")
def up(
    brokers: int,
    log_dirs: int,
    controllers: int,
    backend: str,
    racks: str | None,
    volumes: VolumeKind | None,
    listener_security: str,
    overrides: tuple[str, ...],
    **options: str | None,
) -> int:
    """Start a cluster that keeps running; prints its bootstrap address and log dirs."""
    import secrets

    from harness.cluster.cluster import boot
    from harness.cluster.nodes.backends import SECURED_LISTENERS, backend_kind
    from harness.cluster.spec import ClusterSpec
    from harness.journal import Journal
    from harness.kafka.builds import BuildOptions, Builds
    from harness.runner.case_cluster import how_to_reach

    kind = backend_kind(backend)
    if listener_security != ListenerSecurity.PLAINTEXT and (lack := kind.lacking(SECURED_LISTENERS)):
        raise UsageError(f"--listener-security {listener_security}: {lack.found} ({lack.fix})")
    pairs = [pair.partition("=") for pair in overrides]
    if bad := [pair[0] for pair in pairs if not pair[1]]:
        raise UsageError(f"--set {bad[0]}: not KEY=VALUE")
    builds = Builds.choose(BuildOptions(**options))
    mode = builds.modes()[-1]
    try:
        spec = ClusterSpec(
            mode=mode,
            brokers=brokers,
            log_dirs=log_dirs,
            controllers=controllers,
            racks=tuple(rack or None for rack in racks.split(",")) if racks else (),
            volumes=volumes,
            backend=backend,
            listener_security=ListenerSecurity(listener_security),
            overrides={key: value for key, _, value in pairs},
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    undo.clean(note)
    kind.check()
    distribution = builds.of(mode, note)
    kind.runtime(distribution, mode, note)
    name = f"cluster-{secrets.token_hex(3)}"
    with err.status(f"Kafka {distribution.version} in mode {mode}"):
        folder = undo.workspace() / name  # its logs go with it
        running = boot(spec, distribution, run_id=name, record_dir=folder, journal=Journal(None), outlives_harness=True)
        running.keep()
    click.echo("\n".join([f"{name}: logs in {folder / 'brokers'}", *how_to_reach(running)]))
    return EXIT_VALID


@cluster.command()
def status() -> int:
    """List the clusters that keep running."""
    kept = [log.parent.name for log in undo.logs() if undo.is_kept(log)]
    for name in kept:
        processes = list(marked_processes(name))
        click.echo(f"{name}: {len(processes)} processes, data in {undo.workspace() / name}")
    if not kept:
        click.echo("no cluster is running")
    return EXIT_VALID


@cluster.command()
@click.argument("name", nargs=-1)
def down(name: tuple[str, ...]) -> int:
    """Stop the named clusters, or all that keep running."""
    kept = [log.parent.name for log in undo.logs() if undo.is_kept(log)]
    for unknown in set(name) - set(kept):
        raise UsageError(
            f"no cluster {unknown!r} is running; there {'is' if len(kept) == 1 else 'are'}: {', '.join(kept) or 'none'}"
        )
    running = []
    for cluster_name in name or kept:
        if undo.take_down(cluster_name):
            click.echo(f"{cluster_name}: down")
        else:
            running.append(cluster_name)
    if running:
        raise HarnessError(f"not taken down: {', '.join(running)}: another process uses it, or has taken it down")
    return EXIT_VALID


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@with_options(BUILD_OPTIONS)
@click.argument("name")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tool(name: str, arguments: tuple[str, ...], **options: str | None) -> int:
    """Run a program of a Kafka build, such as topics, log-dirs, reassign or dump-log.

    All arguments after NAME go to the program: jbod tool topics --bootstrap-server HOST:PORT --describe
    """
    from harness.kafka.builds import BuildOptions, Builds
    from harness.kafka.tools import tool_command
    from harness.kafka.versions import Tool

    try:
        wanted = Tool(name.removeprefix("kafka-").removesuffix(".sh"))
    except ValueError:
        raise UsageError(f"no tool {name!r}; there are: {', '.join(Tool)}") from None
    builds = Builds.choose(BuildOptions(**options))
    command = tool_command(builds.of(builds.modes()[-1]), wanted, *arguments)
    sys.stdout.flush()
    os.execvp(command[0], command)


@click.group()
def image() -> None:
    """Build images for --backend docker."""


@image.command()
def base() -> int:
    """Build a base image with Java from Debian's packages (mmdebstrap), if no registry can be reached."""
    from harness.cluster.nodes.images import make_base

    click.echo(make_base(note))
    return EXIT_VALID


@image.command()
@with_options(BUILD_OPTIONS)
@click.option("--base", metavar="IMAGE", help="The base image, which must have Java and bash.")
def build(base: str | None, **options: str | None) -> int:
    """Build the image of a Kafka build with compose/Dockerfile, and print its name."""
    from harness.cluster.nodes.images import build as build_image
    from harness.host.engine import engine
    from harness.kafka.builds import BuildOptions, Builds

    builds = Builds.choose(BuildOptions(**options))
    engine()  # fails before Kafka is downloaded
    for mode in builds.modes():
        click.echo(build_image(builds.of(mode, note), base=base, say=note))
    return EXIT_VALID


@click.command()
def clean() -> int:
    """Undo everything that interrupted runs left: processes, mounts, permissions, containers, folders."""
    count = undo.clean(say)
    out.print(f"cleaned up after {count} interrupted run{'' if count == 1 else 's'}")
    return EXIT_VALID
