"""Prints a story in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.explain.story import Story
from harness.explain.whereabouts import Replica


def show(story: Story, out: Console) -> None:
    """Print the summary of a story, its timeline, and where the record is now."""
    out.rule(Text(f"{story.producer} #{story.seq}  {', '.join(story.kinds)}", style="bold"), align="left")
    out.print(Text(story.summary, style="bold yellow" if story.kinds else ""))
    timeline = Table("at (UTC)", "who", "what", box=None, header_style="dim", pad_edge=False)
    for event in story.timeline:
        at = f"{event.at:%H:%M:%S.%f}"[:-3] if event.at else "?"
        style = {story.producer: "cyan", "jbod": "magenta"}.get(
            event.source, "" if "broker" in event.source else "green"
        )
        timeline.add_row(at, Text(event.source, style=style), Text(event.says, style=style))
    out.print(timeline)
    if story.replicas is None:
        return
    now = Table("broker", "log dir", "its state", "the record", "in its place", "log", box=None, header_style="dim")
    for replica in story.replicas:
        now.add_row(
            str(replica.broker),
            f"{replica.log_dir}/{replica.folder}",
            replica.state,
            _copies(replica),
            ", ".join(f"{offset}: {who}" for offset, who in replica.instead),
            "empty" if replica.offsets is None else f"{replica.offsets[0]} to {replica.offsets[1]}",
        )
    out.print(now)


def _copies(replica: Replica) -> Text:
    if not replica.copies:
        return Text("not there", style="red")
    words = ", ".join(
        f"{copy.offset} (epoch {copy.leader_epoch}{'' if copy.crc_fits else ', CRC does not fit'})"
        for copy in replica.copies
    )
    if not replica.held:
        return Text(f"{words}: does not count, {replica.why_not_held}", style="red")
    return Text(words, style="green")
