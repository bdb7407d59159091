"""A diagnosis in words: one sentence, the details, and what to do."""

from collections.abc import Callable, Iterator

from msgspec import UNSET

from pyoco_server.domain.diagnosis import advice
from pyoco_server.domain.diagnosis.causes import Cause, Diagnosis, Facts, cause_of, evidence_of
from pyoco_server.domain.fleet import WorkerState
from pyoco_server.domain.languages import NOTHING, Language, Said, raw
from pyoco_server.domain.runs.model import CodeWheel, FailureKind, RunStatus

MAX_MESSAGE = 300
"""Characters of an error in the summary."""


def explained(facts: Facts, language: Language) -> Diagnosis:
    cause = cause_of(facts)
    summary, steps = _TEXTS[cause]
    return Diagnosis(
        run_id=facts.run.run_id,
        cause=cause,
        summary=summary(facts).in_(language),
        details="\n".join(line.in_(language) for line in _details(facts)),
        advice=[line.in_(language) for line in (*steps(facts), *advice.of_the_tag(facts, cause))],
        evidence=evidence_of(facts),
    )


# Summaries


def _no_worker(facts: Facts) -> Said:
    return Said(
        "No live worker has the tag {tag!r}: the run waits until one is started.",
        "tag「{tag}」のworkerが動いていないため、runは待機しています。",
    ).of(tag=facts.run.tag)


def _busy(facts: Facts) -> Said:
    queue = facts.queue
    if queue is None:
        return Said("The run waits for a worker.", "runはworkerの空きを待っています。")
    values = {"tag": queue.tag, "position": queue.position, "waiting": queue.waiting}
    if queue.position is None:
        return Said(
            "The run waits in the queue of the tag {tag!r}, where {waiting:,} runs wait.",
            "runはtag「{tag}」のキューで待機しています（待機中のrun: {waiting:,}件）。",
        ).of(**values)
    if queue.position == 1:
        return Said(
            "The run is next in the queue of the tag {tag!r}: it starts when a worker has a free slot.",
            "runはtag「{tag}」のキューの先頭です。workerに空きができ次第、開始します。",
        ).of(**values)
    return Said(
        "The workers with the tag {tag!r} are busy: the run is number {position:,} of {waiting:,} in the queue.",
        "tag「{tag}」のworkerに空きがありません。runはキューの{waiting:,}件中{position:,}番目です。",
    ).of(**values)


def _paused(facts: Facts) -> Said:
    pause = facts.waiting_for.paused if facts.waiting_for is not None else UNSET
    if pause is UNSET:
        return NOTHING
    why = NOTHING if pause.reason is None else Said(" ({reason})", "（{reason}）").of(reason=pause.reason)
    since = max(0.0, facts.now - pause.since)
    if pause.flow is not UNSET:
        return Said(
            "The flow {name!r} has been paused for {since}{why}.",
            "flow「{name}」は{since}前から一時停止中です{why}。",
        ).of(name=pause.flow, since=since, why=why)
    return Said(
        "The queue of the tag {name!r} has been paused for {since}{why}.",
        "tag「{name}」のキューは{since}前から一時停止中です{why}。",
    ).of(name=pause.tag, since=since, why=why)


def _delayed(facts: Facts) -> Said:
    return Said(
        "The run was submitted with a delay: it can start in {left}.",
        "runは開始時刻を指定して投入されています。あと{left}で開始できます。",
    ).of(left=_left(facts))


def _limit(facts: Facts) -> Said:
    waits = facts.waiting_for
    if waits is None:
        return NOTHING
    has_key = waits.key not in (UNSET, "")
    key = Said(" for the key {key!r}", "（キー: {key}）").of(key=waits.key) if has_key else NOTHING
    return Said(
        "The limit {limit!r} is reached{key}: the run is number {position:,} in line.",
        "リミット「{limit}」に達しています{key}。runは{position:,}番目に待機しています。",
    ).of(limit=waits.limit, key=key, position=waits.position)


def _next_try(facts: Facts) -> Said:
    last, policy = facts.last_try, facts.run.retry
    return Said(
        "Try {n} of {most} failed: {message} The next try can start in {left}.",
        "{most}回中{n}回目の試行が失敗しました: {message} 次の試行はあと{left}で開始できます。",
    ).of(
        n=0 if last is None else last.n,
        most=1 if policy is None else policy.max_attempts,
        message=_message(facts),
        left=_left(facts),
    )


def _worker_lost(facts: Facts) -> Said:
    worker = facts.worker
    if facts.failure is not None and facts.failure.kind is FailureKind.MAX_DELIVER:
        return Said(
            "The run was given up: every worker that took it was lost before the run ended. {message}",
            "runを受け取ったworkerがいずれも途中で失われたため、runの実行を断念しました。{message}",
        ).of(message=_message(facts))
    if worker is None:
        return NOTHING
    if worker.silent_sec is None or worker.state in (None, WorkerState.STOPPED_GRACEFUL):
        return Said(
            "The worker {worker!r} is gone; the job goes to another worker.",
            "worker「{worker}」は停止しています。ジョブは別のworkerに渡されます。",
        ).of(worker=worker.worker_id)
    if not worker.is_same_instance:
        return Said(
            "The worker {worker!r} was restarted while it had the run; the job is delivered again.",
            "worker「{worker}」はrunの実行中に再起動しました。ジョブは再配信されます。",
        ).of(worker=worker.worker_id)
    return Said(
        "The worker {worker!r} has not reported for {silent}; the job goes to another worker.",
        "worker「{worker}」からの応答が{silent}途絶えています。ジョブは別のworkerに渡されます。",
    ).of(worker=worker.worker_id, silent=worker.silent_sec)


def _running(facts: Facts) -> Said:
    run = facts.run
    since = max(0.0, facts.now - run.start_time) if run.start_time is not None else 0.0
    return Said(
        "The run has been running on the worker {worker!r} for {since}.",
        "runはworker「{worker}」で{since}前から実行中です。",
    ).of(worker=run.worker_id, since=since)


def _failed(facts: Facts) -> Said:
    failure = facts.failure
    task = None if failure is None else failure.task
    if task is None:
        return Said("The run failed: {message}", "runが失敗しました: {message}").of(message=_message(facts))
    return Said(
        "The run failed in the task {task!r}: {message}",
        "タスク「{task}」でrunが失敗しました: {message}",
    ).of(task=task, message=_message(facts))


def _flow_not_found(facts: Facts) -> Said:
    return Said(
        "The worker {worker!r}, which took the run, does not have the flow {flow!r}.",
        "runを受け取ったworker「{worker}」に、flow「{flow}」がありません。",
    ).of(worker=facts.run.worker_id, flow=facts.run.flow_name)


def _crash(facts: Facts) -> Said:
    return Said(
        "The process that ran the flow died: {message}",
        "flowを実行していたプロセスが異常終了しました: {message}",
    ).of(message=_message(facts))


def _timeout(facts: Facts) -> Said:
    return Said(
        "The run took longer than its timeout: {message}",
        "runが制限時間を超えました: {message}",
    ).of(message=_message(facts))


def _expired(facts: Facts) -> Said:
    return Said(
        "No worker started the run within {within}, so it expired.",
        "{within}以内にworkerがrunを開始しなかったため、期限切れになりました。",
    ).of(within=float(facts.run.start_within_sec or 0.0))


def _cancelled(facts: Facts) -> Said:
    run = facts.run
    by = Said(" by {by}", "（{by}）").of(by=run.cancel_requested_by) if run.cancel_requested_by else NOTHING
    reason = Said(": {reason}", ": {reason}").of(reason=run.cancel_reason) if run.cancel_reason else NOTHING
    if run.status is RunStatus.CANCELLING:
        return Said("The run is being cancelled{by}{reason}", "runは取り消し処理中です{by}{reason}").of(
            by=by, reason=reason
        )
    return Said("The run was cancelled{by}{reason}", "runは取り消されました{by}{reason}").of(
        by=by, reason=reason
    )


def _completed(facts: Facts) -> Said:
    run = facts.run
    if run.start_time is None or run.end_time is None:
        return Said("The run completed.", "runは完了しました。")
    return Said("The run completed in {took}.", "runは{took}で完了しました。").of(
        took=max(0.0, run.end_time - run.start_time)
    )


_TEXTS: dict[Cause, tuple[Callable[[Facts], Said], Callable[[Facts], Iterator[Said]]]] = {
    Cause.NO_WORKER: (_no_worker, advice.no_worker),
    Cause.BUSY: (_busy, advice.busy),
    Cause.PAUSED: (_paused, advice.paused),
    Cause.DELAYED: (_delayed, advice.delayed),
    Cause.LIMIT: (_limit, advice.limit),
    Cause.NEXT_TRY: (_next_try, advice.next_try),
    Cause.WORKER_LOST: (_worker_lost, advice.worker_lost),
    Cause.RUNNING: (_running, advice.running),
    Cause.ERROR: (_failed, advice.failed),
    Cause.FLOW_NOT_FOUND: (_flow_not_found, advice.flow_not_found),
    Cause.CRASH: (_crash, advice.crash),
    Cause.TIMEOUT: (_timeout, advice.timeout),
    Cause.EXPIRED: (_expired, advice.expired),
    Cause.CANCELLED: (_cancelled, advice.cancelled),
    Cause.COMPLETED: (_completed, advice.completed),
}
"""Summary and advice."""


def _left(facts: Facts) -> float:
    return max(0.0, (facts.run.not_before or 0.0) - facts.now)


def _message(facts: Facts) -> str:
    """The error in one line, with a full stop."""
    text = " ".join((facts.failure.message if facts.failure is not None else "").split())
    cut = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"
    return cut if cut.endswith((".", "…", "!", "?")) else f"{cut}."


# Details


def _details(facts: Facts) -> Iterator[Said]:
    if facts.run.status is RunStatus.PENDING:
        yield from _about_the_queue(facts)
    yield from _about_the_code(facts)
    yield from _about_other_runs(facts)
    if facts.log:
        yield Said("The last lines of the log:", "ログの末尾:")
        yield from (raw(f"  {line}") for line in facts.log)


def _about_the_queue(facts: Facts) -> Iterator[Said]:
    if facts.queue is not None:
        yield Said(
            "Queue {tag!r}: {waiting:,} waiting, {running:,} running, {ended:,} ended in the last minute; "
            "live workers: {workers:,} with {slots:,} slots.",
            "キュー「{tag}」: 待機中 {waiting:,}件、実行中 {running:,}件、直近1分の終了 {ended:,}件。"
            "稼働中のworker: {workers:,}台（同時実行数 {slots:,}）。",
        ).of(
            tag=facts.queue.tag,
            waiting=facts.queue.waiting,
            running=facts.queue.running,
            ended=facts.queue.throughput_per_min,
            workers=facts.queue.workers,
            slots=facts.queue.slots,
        )


def _about_the_code(facts: Facts) -> Iterator[Said]:
    run = facts.run
    if run.worker_id is not None and facts.failure is not None:
        yield Said("Worker {worker!r}, delivery {attempt}.", "worker「{worker}」、{attempt}回目の配信。").of(
            worker=run.worker_id, attempt=run.attempt or 1
        )
    if run.wheels and facts.failure is not None:
        yield Said("Code: {wheels}.", "コード: {wheels}").of(wheels=versions(run.wheels))


def versions(wheels: tuple[CodeWheel, ...]) -> str:
    return ", ".join(f"{wheel.name} {wheel.version}" for wheel in wheels)


def _about_other_runs(facts: Facts) -> Iterator[Said]:
    same, last = facts.same_errors, facts.last_completed
    if same is not None and same.failed == 1:
        yield Said(
            "No other run of the flow has failed in the last 24 hours.",
            "直近24時間に、このflowのほかのrunは失敗していません。",
        )
    elif same is not None:
        yield Said(
            "In the last 24 hours {failed:,}{more} runs of the flow failed, {count:,} of them with this error.",
            "直近24時間にこのflowのrunは{failed:,}件{more}失敗し、そのうち{count:,}件が同じエラーです。",
        ).of(
            failed=same.failed,
            count=same.count,
            more=Said(" or more", "以上") if same.is_partial else NOTHING,
        )
    if last is not None:
        yield Said(
            "The last run of the flow that completed ended {ago} ago: {run_id}.",
            "このflowで最後に完了したrunは{ago}前に終了しています: {run_id}",
        ).of(ago=max(0.0, facts.now - last.at), run_id=last.run_id)
