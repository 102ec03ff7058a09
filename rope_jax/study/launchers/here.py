"""`--launcher here`: all work in this process."""

from rope_jax.study.launchers.base import Launch
from rope_jax.study.provenance import Maker, commit, cpu_model, new_session
from rope_jax.study.work import Worker
from rope_jax.training import devices


def launch(launch: Launch) -> bool:
    """Runs what is missing."""
    worker(launch).run()
    return True


def worker(launch: Launch) -> Worker:
    """This process as one that works on a study. JAX must be configured."""
    launch.store.begin()
    kind = devices.kind()
    return Worker(
        experiment=launch.experiment,
        store=launch.store,
        session=new_session(launch.store, launch.command, launch.experiment, devices.names()),
        maker=Maker(commit=commit(), device=cpu_model() if kind == "cpu" else kind, exact=kind == "cpu"),
        options=launch.options,
        stop=launch.stop,
        watch=launch.watch,
    )
