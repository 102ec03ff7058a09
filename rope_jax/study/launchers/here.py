"""`--launcher here`: all work in this process, or in several that are one program."""

from dataclasses import replace
from pathlib import Path

from rope_jax.study.followers import SilentSession, SilentStore
from rope_jax.study.launchers.base import Launch
from rope_jax.study.options import Watch
from rope_jax.study.provenance import Maker, commit, cpu_model, new_session
from rope_jax.study.work import Worker
from rope_jax.training import devices, processes


def launch(launch: Launch) -> bool:
    """Runs what is missing. It is over in the main process alone, so that one process makes the report."""
    main = processes.is_main()
    worker(launch).run()
    return main


def worker(launch: Launch) -> Worker:
    """This process as one that works on a study. JAX must be configured."""
    kind = devices.kind()
    store, options, watch = launch.store, launch.options, launch.watch
    if processes.is_main():
        store.begin()
        session = new_session(store, launch.command, launch.experiment, devices.names())
    else:
        store, options, watch = SilentStore(store.path), replace(options, trackers=()), Watch()
        session = SilentSession(Path(), {})
    return Worker(
        experiment=launch.experiment,
        store=store,
        session=session,
        maker=Maker(commit=commit(), device=cpu_model() if kind == "cpu" else kind, exact=kind == "cpu"),
        options=options,
        stop=launch.stop,
        watch=watch,
    )
