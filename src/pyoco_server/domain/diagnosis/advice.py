"""What to do about a run, by the cause of its state: the next step first."""

from collections.abc import Iterator

from msgspec import UNSET

from pyoco_server.domain.diagnosis.causes import Cause, Facts
from pyoco_server.domain.languages import Said
from pyoco_server.domain.runs.model import FailureKind

MANY_ERRORS = 3
"""From so many equal errors in a day on, trying again will hardly help."""


def of_the_tag(facts: Facts, cause: Cause) -> Iterator[Said]:
    """For a run that waits for something else: what will be missing then."""
    if cause in _BEFORE_THE_WORKERS and facts.lacks_workers:
        yield Said(
            "No live worker has the tag {tag!r} either. Start one: pyoco-worker --tags {tag} --flows DIR",
            "tag「{tag}」のworkerも動いていません。起動してください: pyoco-worker --tags {tag} --flows DIR",
        ).of(tag=facts.run.tag)
    if cause in _WAITING and not facts.lacks_workers:
        yield from _about_an_unknown_flow(facts)


_BEFORE_THE_WORKERS = frozenset({Cause.PAUSED, Cause.LIMIT, Cause.DELAYED, Cause.NEXT_TRY})
_WAITING = _BEFORE_THE_WORKERS | {Cause.BUSY}


def _about_an_unknown_flow(facts: Facts) -> Iterator[Said]:
    if not facts.flow.is_known:
        yield Said(
            "No live worker with the tag {tag!r} has the flow {flow!r}: as it stands, the run will fail.",
            "tag「{tag}」のworkerに、flow「{flow}」を持つものがありません。このままではrunは失敗します。",
        ).of(tag=facts.run.tag, flow=facts.run.flow_name)
        yield from _where_the_flow_is(facts)


def _where_the_flow_is(facts: Facts) -> Iterator[Said]:
    if facts.flow.tags:
        yield Said(
            "Workers with these tags have the flow: {tags}. Submit the run with one of them.",
            "次のtagのworkerはこのflowを持っています: {tags}。このtagを指定して投入してください。",
        ).of(tags=", ".join(facts.flow.tags))
    if facts.flow.similar_flows:
        yield Said("Similar flows that workers have: {flows}.", "workerが持つ似た名前のflow: {flows}").of(
            flows=", ".join(facts.flow.similar_flows)
        )


# Before the start


def no_worker(facts: Facts) -> Iterator[Said]:
    if facts.gone:
        yield Said(
            "Start the worker again that had the tag: {workers}.",
            "このtagを担当していたworkerを起動し直してください: {workers}",
        ).of(workers=", ".join(worker.worker_id for worker in facts.gone))
    yield Said(
        "Start a worker: pyoco-worker --tags {tag} --flows DIR",
        "workerを起動してください: pyoco-worker --tags {tag} --flows DIR",
    ).of(tag=facts.run.tag)
    if facts.flow.similar_tags:
        yield Said(
            "Live workers have these tags: {tags}. If one of them was meant, cancel the run and submit it again: "
            "pyoco-client cancel {run_id}",
            "稼働中のworkerには次のtagがあります: {tags}。tagの誤りであれば、runを取り消して投入し直してください: "
            "pyoco-client cancel {run_id}",
        ).of(tags=", ".join(facts.flow.similar_tags), run_id=facts.run.run_id)


def busy(facts: Facts) -> Iterator[Said]:
    queue = facts.queue
    if queue is None:
        return
    if queue.throughput_per_min and queue.position is not None:
        yield Said(
            "At the rate of the last minute it starts in about {wait}.",
            "直近1分のペースでは、約{wait}後に開始します。",
        ).of(wait=60.0 * queue.position / queue.throughput_per_min)
    yield Said(
        "To start it earlier, add a worker: pyoco-worker --tags {tag} --flows DIR, or raise --concurrency of one.",
        "早く開始するには、workerを追加するか（pyoco-worker --tags {tag} --flows DIR）、--concurrency を増やしてください。",
    ).of(tag=queue.tag)


def paused(facts: Facts) -> Iterator[Said]:
    pause = facts.waiting_for.paused if facts.waiting_for is not None else UNSET
    if pause is UNSET:
        return
    if pause.until is not None:
        yield Said("The pause ends in {left}.", "一時停止はあと{left}で終わります。").of(
            left=max(0.0, pause.until - facts.now)
        )
    what, name = ("queues", pause.tag) if pause.flow is UNSET else ("flows", pause.flow)
    yield Said(
        "To go on now: pyoco-client {what} resume {name}",
        "すぐに再開するには: pyoco-client {what} resume {name}",
    ).of(what=what, name=name)


def delayed(facts: Facts) -> Iterator[Said]:
    yield Said(
        "To start it now, cancel it (pyoco-client cancel {run_id}) and submit it without a delay.",
        "すぐに開始するには、取り消して（pyoco-client cancel {run_id}）、時刻を指定せずに投入してください。",
    ).of(run_id=facts.run.run_id)


def limit(facts: Facts) -> Iterator[Said]:
    waits = facts.waiting_for
    if waits is not None:
        yield Said(
            "See which keys hold its places: pyoco-client limits keys {limit}",
            "枠の使用状況を確認してください: pyoco-client limits keys {limit}",
        ).of(limit=waits.limit)
        yield Said(
            "To let more runs through, raise max_running or rate: pyoco-client limits put FILE",
            "同時に実行できる数を増やすには、max_running または rate を変更してください: pyoco-client limits put FILE",
        )


def next_try(facts: Facts) -> Iterator[Said]:
    yield from _see_the_log(facts)
    yield Said(
        "If another try cannot help, cancel the run: pyoco-client cancel {run_id}",
        "再試行しても成功しない場合は、runを取り消してください: pyoco-client cancel {run_id}",
    ).of(run_id=facts.run.run_id)


# While it runs


def worker_lost(facts: Facts) -> Iterator[Said]:
    if facts.failure is not None and facts.failure.kind is FailureKind.MAX_DELIVER:
        yield from _check_the_machine()
        yield from _retry(facts)
        return
    yield Said(
        "Check that the worker is running, and its connection to NATS: pyoco-client workers --scope all",
        "workerが動いているか、NATSに接続できているかを確認してください: pyoco-client workers --scope all",
    )
    yield from _check_the_machine()
    if facts.lacks_workers:
        yield Said(
            "No other live worker has the tag {tag!r}. Start one: pyoco-worker --tags {tag} --flows DIR",
            "tag「{tag}」のworkerがほかにありません。起動してください: pyoco-worker --tags {tag} --flows DIR",
        ).of(tag=facts.run.tag)


def _check_the_machine() -> Iterator[Said]:
    yield Said(
        "If the worker was killed, look for a lack of memory: dmesg or journalctl -k on its machine.",
        "workerが強制終了された場合は、メモリ不足の可能性があります。そのマシンで dmesg または journalctl -k を確認してください。",
    )


def running(facts: Facts) -> Iterator[Said]:
    yield Said("Watch it: pyoco-client watch {run_id}", "監視するには: pyoco-client watch {run_id}").of(
        run_id=facts.run.run_id
    )


# After its end


def failed(facts: Facts) -> Iterator[Said]:
    yield from _see_the_log(facts)
    yield from _about_the_code(facts)
    same = facts.same_errors
    if same is not None and same.count >= MANY_ERRORS:
        yield Said(
            "The error is not a passing one ({count:,} times in 24 hours): correct its cause before a retry.",
            "一時的なエラーではありません（24時間に{count:,}回）。原因を修正してから再実行してください。",
        ).of(count=same.count)
    yield from _retry(facts)


def _see_the_log(facts: Facts) -> Iterator[Said]:
    yield Said(
        "See the traceback and the log: pyoco-client get {run_id} --output table, pyoco-client logs {run_id}",
        "tracebackとログを確認してください: pyoco-client get {run_id} --output table、pyoco-client logs {run_id}",
    ).of(run_id=facts.run.run_id)


def _about_the_code(facts: Facts) -> Iterator[Said]:
    last, wheels = facts.last_completed, facts.run.wheels
    if facts.is_code_changed and last is not None and last.wheels is not None and wheels is not None:
        new = sorted(f"{wheel.name} {wheel.version}" for wheel in set(wheels) - set(last.wheels))
        old = sorted(f"{wheel.name} {wheel.version}" for wheel in set(last.wheels) - set(wheels))
        yield Said(
            "The code has changed since the last run that completed: before {old}, now {new}.",
            "最後に完了したrunの後にコードが変わっています。以前: {old}、現在: {new}",
        ).of(old=", ".join(old) or "-", new=", ".join(new) or "-")


def _retry(facts: Facts) -> Iterator[Said]:
    yield Said(
        "Run it again: pyoco-client retry {run_id} (--from failed keeps what succeeded)",
        "再実行するには: pyoco-client retry {run_id}（--from failed で成功したタスクの出力を引き継ぎます）",
    ).of(run_id=facts.run.run_id)


def flow_not_found(facts: Facts) -> Iterator[Said]:
    yield from _where_the_flow_is(facts)
    yield Said(
        "Add the flow to the workers with the tag {tag!r} and start them again; what each has: pyoco-client flows list",
        "tag「{tag}」のworkerにflowを追加して起動し直してください。flowの一覧: pyoco-client flows list",
    ).of(tag=facts.run.tag)
    yield from _rerun(facts)


def crash(facts: Facts) -> Iterator[Said]:
    yield from _see_the_log(facts)
    yield Said(
        "SIGKILL is mostly a lack of memory: give the machine more, or run fewer flows at once (--concurrency). "
        "SIGSEGV comes from native code.",
        "SIGKILL の多くはメモリ不足です。メモリを増やすか、同時に実行するflowを減らしてください（--concurrency）。"
        "SIGSEGV はネイティブコードが原因です。",
    )
    yield from _about_the_code(facts)
    yield from _retry(facts)


def timeout(facts: Facts) -> Iterator[Said]:
    yield Said(
        "Find the task that took the time: pyoco-client tasks {run_id} --output table",
        "時間のかかったタスクを確認してください: pyoco-client tasks {run_id} --output table",
    ).of(run_id=facts.run.run_id)
    yield Said(
        "If it needs that time, raise the timeout: --timeout of the submission, or pyoco-client flows set {flow}",
        "必要な時間であれば、制限時間を延ばしてください: 投入時の --timeout、または pyoco-client flows set {flow}",
    ).of(flow=facts.run.flow_name)
    yield from _retry(facts)


def expired(facts: Facts) -> Iterator[Said]:
    if facts.lacks_workers:
        yield from no_worker(facts)
    else:
        yield Said(
            "The workers with the tag {tag!r} were busy or away: add one, or allow a longer wait (--start-within).",
            "tag「{tag}」のworkerに空きがなかったか、停止していました。workerを追加するか、--start-within を延ばしてください。",
        ).of(tag=facts.run.tag)
    yield from _rerun(facts)


def _rerun(facts: Facts) -> Iterator[Said]:
    yield Said(
        "Then run it again: pyoco-client rerun {run_id}",
        "その後、再実行してください: pyoco-client rerun {run_id}",
    ).of(run_id=facts.run.run_id)


def cancelled(facts: Facts) -> Iterator[Said]:
    if facts.run.status.is_terminal:
        yield Said(
            "To run it again: pyoco-client rerun {run_id}", "再実行するには: pyoco-client rerun {run_id}"
        ).of(run_id=facts.run.run_id)
    else:
        yield Said(
            "Wait for it: its worker ends the tasks, at the latest after the grace period.",
            "終了をお待ちください。workerがタスクを終了させます（遅くとも猶予期間の後）。",
        )


def completed(facts: Facts) -> Iterator[Said]:
    for text in facts.run.warnings:
        yield Said("Warning of the run: {text}", "runの警告: {text}").of(text=text)
