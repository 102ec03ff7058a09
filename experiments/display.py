"""A progress bar on stderr, and lines where stderr is no terminal."""

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from experiments import command
from rope_jax.study.options import Watch


class Display(Watch):
    """Shows loss, speed and time left of what is being done."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        self._shown = console.is_terminal
        self._task: TaskID | None = None
        self._name = ""
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),  # names may hold brackets
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> "Display":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def began(self, name: str, total: int, done: int = 0) -> None:
        self.ended()
        self._name = name
        self._task = self._bar.add_task(name, total=total, completed=done, status="")

    def moved(self, done: int, status: str) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=done, status=status)

    def ended(self) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
            self._task = None

    def finished(self, name: str) -> None:
        if not self._shown:
            command.remark(f"{name}: finished")

    def said(self, text: str) -> None:
        if self._shown:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            command.remark(text)
