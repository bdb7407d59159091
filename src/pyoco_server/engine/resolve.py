"""From a job to its running flow: what `--flow-resolver` and `--flows` may name, and the handle of a flow."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pyoco.core.models import Flow

from pyoco_server import otel
from pyoco_server.domain.fleet import FlowList, reportable_flows
from pyoco_server.domain.runs.jobs import Ending, FlowOutcome, FlowProgress, Job, ResolvedJob
from pyoco_server.domain.runs.logs import LogEntry
from pyoco_server.domain.runs.model import FailureKind, RunProgress
from pyoco_server.domain.runs.task_requests import TaskRequest
from pyoco_server.domain.secrets.masking import NO_MASKS, Masks
from pyoco_server.domain.value_previews import article, type_name
from pyoco_server.engine.flow_plan import left_out_of
from pyoco_server.engine.flow_run import FlowRun, OnTask
from pyoco_server.engine.flow_yaml import load_flow_and_defaults
from pyoco_server.engine.print_capture import CallLater, OutputSource, PrintCapture, PrintReports
from pyoco_server.engine.task_host import ADVANCE_SEC, LocalTaskHost, Paced, Questions
from pyoco_server.engine.tasks import check_tasks, close_never_awaited, described, raised
from pyoco_server.engine.values import BadParams, ValueRoom, with_files
from pyoco_server.errors import ExecutionFailed, InvalidCliInput, PyocoServerError
from pyoco_server.logs import get_logger

log = get_logger(__name__)

FlowResolver = Callable[[str], Any]
"""Returns a pyoco Flow, or raises KeyError for an unknown name."""

MAX_NAMES = 3
_PACKAGE = Path(__file__).parents[1]
_EXAMPLES = "examples: my_package.flows:resolve   flows/main.py:resolve   my_package.flows   flows/main.py"


class UnknownFlow(KeyError):
    """No flow has this name; `advice` suggests others."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name)
        self.advice = _advice(name, sorted(known))


def _advice(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=MAX_NAMES)
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f", … ({len(known)} in all)" if len(known) > MAX_NAMES else ""
    return f"this worker has {', '.join(known[:MAX_NAMES])}{more}"


class _Finder:
    def __init__(self, flows: dict[str, Flow]) -> None:
        self._flows = flows

    def __call__(self, name: str) -> Flow:
        try:
            return self._flows[name]
        except KeyError:
            raise UnknownFlow(name, self._flows) from None

    def list_flows(self) -> set[str]:
        """Each flow once, although the name of its variable finds it, too."""
        return {self._name_of(flow, key) for key, flow in self._flows.items()}

    def _name_of(self, flow: Flow, key: str) -> str:
        """Its own name, if that finds it."""
        name: str = flow.name
        return name if self._flows.get(name) is flow else key

    @property
    def aliases(self) -> set[str]:
        return set(self._flows) - self.list_flows()


class FlowNames(Struct, frozen=True):
    """Names of the flows of a resolver; None: it cannot list them. `problem`: why not, if it should."""

    names: tuple[str, ...] | None = None
    problem: str | None = None
    aliases: tuple[str, ...] = ()
    """Other names of these flows."""
    is_open: bool = False
    """There may be more."""


def flow_names(resolver: FlowResolver) -> FlowNames:
    """A resolver lists its flows with an attribute `list_flows`, a function that returns names.

    The look-up method of a mapping, such as `FLOWS.__getitem__`, has the names already.
    """
    owner = getattr(resolver, "__self__", None)
    listing = getattr(resolver, "list_flows", None)
    if listing is None and isinstance(owner, Mapping):
        listing = owner.keys
    if listing is None:
        return FlowNames()
    try:
        return FlowNames(
            tuple({str(name): None for name in listing()}),
            aliases=tuple(resolver.aliases) if isinstance(resolver, _Finder) else (),
            is_open=hasattr(owner, "__missing__"),
        )
    except Exception as error:  # noqa: BLE001 - user code; the flows run without a list
        return FlowNames(problem=described(error))


def reported_flows(found: FlowNames) -> FlowList | None:
    """The names for the worker record; what is missing there is logged."""
    if found.problem is not None:
        log.warning("flow resolver cannot list its flows", action="flows.unlisted", reason=found.problem)
    if found.names is None:
        return None
    fitting = reportable_flows(found.names, found.aliases)
    if not fitting.is_complete:
        log.warning(
            "not all flow names fit into the worker record; the others can be run but are not listed",
            action="flows.unlisted",
            listed=len(fitting.names),
            total=len(found.names),
        )
    return replace(fitting, is_complete=fitting.is_complete and not found.is_open)


def resolver_of(flows: Any) -> FlowResolver:
    """`flows`: what `load_resolver` takes, a Flow or several, flows by name, a module, or a resolver."""
    match flows:
        case str() | Path():
            return load_resolver(str(flows))
        case Flow():
            return resolver_of([flows])
        case ModuleType():
            return _Finder(_flows_in([flows], flows.__name__))
        case Mapping():
            return _Finder(dict(flows))
        case Iterable():
            return _Finder({flow.name: flow for flow in flows})
        case _ if callable(flows):
            found: FlowResolver = flows
            return found
    raise TypeError(f"flows must be a path, flows, a module or a resolver, not {article(type_name(flows))}")


def load_resolver(spec: str) -> FlowResolver:
    """`spec`: module:function, path/file.py:function, a module, a file, or a directory of flow files."""
    if Path(spec).is_dir():
        return load_directory(Path(spec))
    place, separator, attribute = spec.rpartition(":")
    if not separator:
        return _Finder(_flows_in([_module(spec)], spec))
    if not place or not attribute:
        raise InvalidCliInput(f"--flow-resolver {spec!r} is not module:function ({_EXAMPLES})")
    resolver = getattr(_module(place), attribute, None)
    if not callable(resolver):
        raise InvalidCliInput(
            f"--flow-resolver {spec!r}: {place} has no function {attribute!r} ({_EXAMPLES})"
        )
    found: FlowResolver = resolver
    return found


def load_directory(directory: Path) -> FlowResolver:
    """The flows of all files in a directory. Files whose names begin with `_` are only for imports."""
    # Files are reloaded when they change: no stale byte code must be used.
    sys.dont_write_bytecode = True
    sys.path.append(str(directory.resolve()))  # last: a file must not shadow a library
    files = sorted(path for path in directory.glob("*.py") if not path.name.startswith("_"))
    return _Finder(
        _flows_in([_from_file(path, f"pyoco_flow_files.{path.stem}") for path in files], directory)
    )


def _flows_in(modules: Iterable[ModuleType], place: object) -> dict[str, Flow]:
    """All flows, by their names and by the names of their variables."""
    found: dict[str, Flow] = {}
    for module in modules:
        for variable, flow in vars(module).items():
            if isinstance(flow, Flow):
                _check(flow, place)
                for name in {variable, flow.name}:
                    if found.setdefault(name, flow) is not flow:
                        raise InvalidCliInput(f"{place}: two flows have the name {name!r}")
    if not found:
        raise InvalidCliInput(f"there is no pyoco Flow in {place} ({_EXAMPLES})")
    return found


def _check(flow: Flow, place: object) -> None:
    try:
        check_tasks(flow)
    except ExecutionFailed as error:
        raise InvalidCliInput(f"{place}: flow {flow.name!r}: {error.detail}") from error
    if problem := left_out_of(flow):
        raise InvalidCliInput(f"{place}: flow {flow.name!r}: {problem}")


def _module(place: str) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(Path(place), Path(place).stem)
    return _from_module(place)


def _from_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidCliInput(f"--flow-resolver: {error} ({_EXAMPLES})") from error


class _FreshFile(SourceFileLoader):
    """Reads the source, never cached byte code."""

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _from_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise InvalidCliInput(f"--flow-resolver: there is no file {path} ({_EXAMPLES})")
    spec = importlib.util.spec_from_file_location(name, path, loader=_FreshFile(name, str(path)))
    if spec is None or spec.loader is None:
        raise InvalidCliInput(f"--flow-resolver: {path} is not a Python file ({_EXAMPLES})")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def why_unusable(error: BaseException) -> str:
    """Why the flows cannot be loaded, and where in the user's files. A SyntaxError names its place itself."""
    own = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not frame.filename.startswith((str(_PACKAGE), "<")) and "site-packages" not in frame.filename
    ]
    place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{described(error)}{place}"


class FlowOfJob(Struct, frozen=True):
    """From the job's flow.yaml, or found by its name."""

    flow: Any
    params: dict[str, Any]


def flow_of(
    job: Job,
    resolver: FlowResolver,
    allowed_modules: tuple[str, ...] = (),
    allowed_env: tuple[str, ...] = (),
) -> FlowOfJob | FlowOutcome:
    """The flow and its params, or the outcome of a run without a flow."""
    if job.workflow_yaml is not None:
        return _from_yaml(job, job.workflow_yaml, allowed_modules, allowed_env)
    return _from_resolver(job, resolver)


def _from_yaml(
    job: Job, text: str, allowed_modules: tuple[str, ...], allowed_env: tuple[str, ...]
) -> FlowOfJob | FlowOutcome:
    try:
        loaded = load_flow_and_defaults(text, job.flow_name, allowed_modules, allowed_env)
    except PyocoServerError as error:
        return FlowOutcome(
            ending=Ending.EXECUTION_ERROR,
            error=error.detail,
            failure_kind=FailureKind.INVALID_JOB,
            raised=raised(error),
        )
    # The params are those of the file; the job may or may not repeat them. It does if they name secrets.
    params = None if job.references is None else job.params
    return FlowOfJob(loaded.flow, loaded.defaults if params is None else params)


def _from_resolver(job: Job, resolver: FlowResolver) -> FlowOfJob | FlowOutcome:
    try:
        flow = resolver(job.flow_name)
    except KeyError as error:
        return FlowOutcome(
            ending=Ending.FLOW_NOT_FOUND,
            error=f"flow not found: {job.flow_name}{_suggestion(error)}",
            raised=raised(error),
        )
    except BaseException as error:  # noqa: BLE001 - a resolver is user code
        return FlowOutcome(
            ending=Ending.EXECUTION_ERROR,
            error=f"the flow resolver raised {described(error)}",
            raised=raised(error),
        )
    if isinstance(flow, Flow):
        return FlowOfJob(flow, job.params or {})
    close_never_awaited([flow])
    return FlowOutcome(
        ending=Ending.EXECUTION_ERROR,
        error=f"the flow resolver returned {article(type_name(flow))}, not a pyoco Flow",
    )


def _suggestion(error: KeyError) -> str:
    return f"; {error.advice}" if isinstance(error, UnknownFlow) else ""


# The handle of a flow in the process that runs it: an executor, or a worker that runs flows in a thread

FindFlow = Callable[[Job], FlowOfJob | FlowOutcome]


class LocalFlowHandle:
    """`run` blocks the calling thread; other threads may call `cancel` and `go_live`, even before it.

    Most flows end before anyone watches: nothing is reported until `go_live`. Subclasses deliver the reports
    (`progressed`, `printed`).
    """

    def __init__(self, call_later: CallLater | None) -> None:
        self._lock = threading.Lock()
        self._flow_run: FlowRun | None = None
        self._is_live = False
        self._is_cancelled = False
        self._prints = PrintReports(self.printed, call_later)
        self._questions = Questions(self.asked)
        self.ask = self._questions.ask
        self.answered = self._questions.answered
        self._advances = Paced(self._report_advance, ADVANCE_SEC, call_later)

    def run(
        self,
        job: Job,
        find: FindFlow,
        output: OutputSource,
        *,
        own_threads: Iterable[threading.Thread] = (),
        room: ValueRoom = ValueRoom(),  # noqa: B008 - frozen
    ) -> FlowOutcome:
        masks = Masks(job.secrets) if isinstance(job, ResolvedJob) and job.secrets else NO_MASKS
        capture = PrintCapture(output, self._output_added, own_threads, masks)
        self._prints.begin(capture)
        room = room.of(job.run_id, is_node=job.execution_id is not None)
        host = LocalTaskHost(self, job, capture, masks, room)
        with capture, host.open(), otel.task_spans(job, partial(raised, masks=masks), masks) as traced:
            found = find(job)
            if isinstance(found, FlowOutcome):
                return found
            try:
                params = with_files(found.params, job.files if isinstance(job, ResolvedJob) else ())
            except BadParams as error:
                return FlowOutcome(
                    ending=Ending.EXECUTION_ERROR, error=str(error), failure_kind=FailureKind.INVALID_JOB
                )
            host.begin(found.flow, params)
            on_task = traced(self._watched(found.flow, host.entered))
            return self._run(
                FlowRun(
                    found.flow,
                    job.run_id,
                    params,
                    on_task,
                    room=room,
                    kept=job.kept,
                    masks=masks,
                )
            )

    def _run(self, run: FlowRun) -> FlowOutcome:
        with self._lock:
            self._flow_run = run
            is_cancelled, is_live = self._is_cancelled, self._is_live
        if is_cancelled:
            run.cancel()
        if is_live:
            run.follow(self.progressed)
        try:
            return run.run()
        finally:
            with self._lock:
                self._flow_run = None

    def cancel(self) -> None:
        """Stop at the next task."""
        with self._lock:
            self._is_cancelled = True
            run = self._flow_run
        self._questions.close()
        if run is not None:
            run.cancel()

    @property
    def is_cancelled(self) -> bool:
        return self._is_cancelled

    def advanced(self, progress: RunProgress) -> None:
        """A task has reported how far the run is."""
        run = self._flow_run
        if run is not None:
            run.note(progress)
            if self._is_live:
                self._advances.soon()

    def _report_advance(self) -> None:
        run = self._flow_run
        if run is not None:
            run.report()

    def go_live(self) -> None:
        """Report the progress now and after every step, and output as it is printed."""
        with self._lock:
            self._is_live = True
            run = self._flow_run
        self._prints.flush_soon()
        if run is not None:
            run.follow(self.progressed)

    def unreported_output(self) -> list[LogEntry]:
        """At the end: what was printed and not reported. Nothing is reported after it."""
        return self._prints.finish()

    def progressed(self, progress: FlowProgress) -> None:
        raise NotImplementedError

    def printed(self, entries: list[LogEntry]) -> None:
        raise NotImplementedError

    def asked(self, number: int, request: TaskRequest) -> None:
        raise NotImplementedError

    def _watched(self, flow: Flow, on_task: OnTask) -> OnTask:  # noqa: ARG002 - for subclasses
        """Called with every start and end of a task."""
        return on_task

    def _output_added(self) -> None:
        if self._is_live:
            self._prints.flush_soon()
