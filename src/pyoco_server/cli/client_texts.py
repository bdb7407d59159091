"""Messages of `pyoco-client`."""

from pyoco_server.cli import Text

# Wheels

NO_SUCH_WHEEL_FILE = Text(
    en="--wheel-file {path}: no such file; build one with: python -m build --wheel",
    ja="--wheel-file {path}: ファイルがありません。作成するには: python -m build --wheel",
)
BAD_WHEEL = Text(
    en="--wheel-file {path}: {reason}. Rebuild it with a standard tool: python -m build --wheel",
    ja="--wheel-file {path}: {reason}。標準のツールで作り直してください: python -m build --wheel",
)
WHEEL_FITS_NOWHERE = Text(
    en="--wheel-file {path}: no worker can install this wheel. It targets {built_for}{requires}; workers run CPython "
    "3.11 or newer on Linux or macOS. Build it for one of those, or as py3-none-any if it is pure Python",
    ja="--wheel-file {path}: どのworkerにもインストールできません。対象は {built_for}{requires} ですが、workerは "
    "Linux/macOS の CPython 3.11 以降で動きます。その環境向けに作り直すか、純粋なPythonコードなら py3-none-any で作成してください",
)
WHEEL_REQUIRES = Text(en=", Requires-Python {wanted}", ja="、Requires-Python {wanted}")
WHEEL_FITS_SOME_PYTHONS = Text(
    en="warning: only workers on CPython {pythons} install this wheel; others skip it "
    "(listed under wheel_sync.skipped_incompatible in pyoco-client workers)",
    ja="警告: このwheelをインストールするのは CPython {pythons} のworkerだけです。それ以外のworkerは読み飛ばします"
    "（pyoco-client workers の wheel_sync.skipped_incompatible に表示されます）",
)
WHEEL_FITS_SOME_PLATFORMS = Text(
    en="warning: only workers on CPython {pythons} and {platforms} install this wheel; others skip it "
    "(listed under wheel_sync.skipped_incompatible in pyoco-client workers)",
    ja="警告: このwheelをインストールするのは CPython {pythons}、{platforms} のworkerだけです。それ以外のworkerは"
    "読み飛ばします（pyoco-client workers の wheel_sync.skipped_incompatible に表示されます）",
)
NO_TASKS_IN_WHEEL = Text(
    en="note: the wheel has no entry point group pyoco.tasks; a flow.yaml can use its code (tasks.*.callable), "
    "but it publishes no tasks. To publish tasks, add to pyproject.toml: "
    '[project.entry-points."pyoco.tasks"]',
    ja="注意: このwheelには entry point グループ pyoco.tasks がありません。flow.yaml（tasks.*.callable）からは"
    "参照できますが、タスクは公開されません。公開するには pyproject.toml に追加してください: "
    '[project.entry-points."pyoco.tasks"]',
)
BAD_ENTRY_POINT = Text(
    en="--wheel-file {path}: entry point pyoco.tasks: {name} = {value!r} {reason}. "
    "Correct it in pyproject.toml and rebuild",
    ja="--wheel-file {path}: entry point pyoco.tasks: {name} = {value!r} {reason}。"
    "pyproject.toml を修正して作り直してください",
)
IS_NOT_MODULE_FUNCTION = Text(
    en="is not of the form module or module:function",
    ja="は module または module:function の形式ではありません",
)
NAMES_NO_MODULE = Text(
    en="refers to module {module}, which is not in the wheel",
    ja="のモジュール {module} はwheelに含まれていません",
)

# Advice for failed HTTP calls, by error id

ADVICE = {
    "ERR-PYOCO-0002": Text(en="Correct the input and try again.", ja="入力を修正して、再実行してください。"),
    "ERR-PYOCO-0003": Text(
        en="The server is running, but its NATS is unavailable. Try again in a moment, or check the server log.",
        ja="サーバーは動いていますが、NATSが利用できません。少し待って再試行するか、サーバーのログを確認してください。",
    ),
    "ERR-PYOCO-0005": Text(
        en="Check the run id: pyoco-client list",
        ja="run_id を確認してください。一覧: pyoco-client list",
    ),
    "ERR-PYOCO-0006": Text(
        en="Check the name: pyoco-client flows list",
        ja="名前を確認してください。一覧: pyoco-client flows list",
    ),
    "ERR-PYOCO-0014": Text(
        en="Set an API key: --api-key pyoco_… or PYOCO_API_KEY.",
        ja="API key を指定してください: --api-key pyoco_… または PYOCO_API_KEY。",
    ),
    "ERR-PYOCO-0015": Text(
        en="Check the API key, or create a new one: pyoco-server-admin api-key create --tenant …",
        ja="API key を確認するか、発行し直してください: pyoco-server-admin api-key create --tenant …",
    ),
    "ERR-PYOCO-0060": Text(
        en="Use a key with this scope. An administrator creates one: pyoco-client api-keys create SCOPES",
        ja="このスコープを持つkeyを使ってください。管理者が発行します: pyoco-client api-keys create SCOPES",
    ),
    "ERR-PYOCO-0061": Text(
        en="Check the key id: pyoco-client api-keys list",
        ja="keyのidを確認してください。一覧: pyoco-client api-keys list",
    ),
    "ERR-PYOCO-0041": Text(
        en="Set the server's event token: --token … or AX_WORKFLOW_EVENT_TOKEN.",
        ja="サーバーのイベントトークンを指定してください: --token … または AX_WORKFLOW_EVENT_TOKEN。",
    ),
    "ERR-PYOCO-0042": Text(
        en="Check the names: pyoco-client templates list, actions list, events retry-jobs.",
        ja="名前を確認してください: pyoco-client templates list, actions list, events retry-jobs。",
    ),
    "ERR-PYOCO-0016": Text(
        en="Reduce the file size, or raise PYOCO_WORKFLOW_YAML_MAX_BYTES on the server.",
        ja="ファイルを小さくするか、サーバーの PYOCO_WORKFLOW_YAML_MAX_BYTES を大きくしてください。",
    ),
    "ERR-PYOCO-0017": Text(
        en="Correct the filters. A cursor is valid only with the filters it was created with.",
        ja="絞り込み条件を修正してください。cursor は取得元と同じ条件でのみ使えます。",
    ),
    "ERR-PYOCO-0019": Text(
        en="Allowed: --scope active|all, --state RUNNING|IDLE|STOPPED_GRACEFUL|DISCONNECTED, --limit 1..500.",
        ja="指定できる値: --scope active|all、--state RUNNING|IDLE|STOPPED_GRACEFUL|DISCONNECTED、--limit 1..500。",
    ),
    "ERR-PYOCO-0020": Text(
        en="Check the worker id: pyoco-client workers --scope all",
        ja="worker_id を確認してください。一覧: pyoco-client workers --scope all",
    ),
    "ERR-PYOCO-0022": Text(
        en="Raise the wheel version and rebuild.", ja="wheelのバージョンを上げて作り直してください。"
    ),
    "ERR-PYOCO-0023": Text(
        en="Check the wheel name: pyoco-client wheels",
        ja="wheel名を確認してください。一覧: pyoco-client wheels",
    ),
    "ERR-PYOCO-0031": Text(
        en="Check the execution id: pyoco-client executions list",
        ja="execution_id を確認してください。一覧: pyoco-client executions list",
    ),
    "ERR-PYOCO-0032": Text(
        en="Check the node id: pyoco-client executions get ID",
        ja="node_id を確認してください。一覧: pyoco-client executions get ID",
    ),
    "ERR-PYOCO-0033": Text(
        en="Check the current state: pyoco-client executions get ID",
        ja="現在の状態を確認してください: pyoco-client executions get ID",
    ),
    "ERR-PYOCO-0048": Text(
        en="Check the schedule id: pyoco-client schedules list",
        ja="スケジュールのIDを確認してください。一覧: pyoco-client schedules list",
    ),
    "ERR-PYOCO-0052": Text(
        en="Check the limit's name: pyoco-client limits list",
        ja="リミットの名前を確認してください。一覧: pyoco-client limits list",
    ),
    "ERR-PYOCO-0053": Text(
        en="See who holds the places: pyoco-client limits list, then submit the run again",
        ja="枠の使用状況を確認してから再送してください: pyoco-client limits list",
    ),
    "ERR-PYOCO-0080": Text(
        en="Check the name: pyoco-client secrets list",
        ja="名前を確認してください。一覧: pyoco-client secrets list",
    ),
    "ERR-PYOCO-0081": Text(
        en="Check the name: pyoco-client vars list",
        ja="名前を確認してください。一覧: pyoco-client vars list",
    ),
    "ERR-PYOCO-0082": Text(
        en="Set PYOCO_SECRETS_KEY for gateways and workers: pyoco-server-admin secrets new-key",
        ja="gatewayとworkerに PYOCO_SECRETS_KEY を設定してください: pyoco-server-admin secrets new-key",
    ),
    "ERR-PYOCO-0083": Text(
        en="Set it: pyoco-client secrets put NAME (or vars put NAME)",
        ja="設定してください: pyoco-client secrets put NAME（変数は vars put NAME）",
    ),
    "ERR-PYOCO-0070": Text(
        en="Check the id: pyoco-client dead-letters list",
        ja="IDを確認してください。一覧: pyoco-client dead-letters list",
    ),
    "ERR-PYOCO-0072": Text(
        en="Check the id: pyoco-client bulk list", ja="IDを確認してください。一覧: pyoco-client bulk list"
    ),
    "ERR-PYOCO-0074": Text(
        en="Check the alert's name: pyoco-client alerts list",
        ja="アラートの名前を確認してください。一覧: pyoco-client alerts list",
    ),
    "ERR-PYOCO-0075": Text(
        en="Check the channel's name: pyoco-client channels list",
        ja="通知チャネルの名前を確認してください。一覧: pyoco-client channels list",
    ),
    "ERR-PYOCO-0076": Text(
        en="Delete the alert first, or give it another channel",
        ja="先にアラートを削除するか、別の通知チャネルに変更してください",
    ),
    "ERR-PYOCO-0077": Text(
        en="Check the id: pyoco-client deliveries list",
        ja="IDを確認してください。一覧: pyoco-client deliveries list",
    ),
    "ERR-PYOCO-0034": Text(
        en="Check the graph id and version: pyoco-client graphs list",
        ja="graph_id とバージョンを確認してください。一覧: pyoco-client graphs list",
    ),
}
CERTIFICATE_ADVICE = Text(
    en="If you trust this server, set the certificate of its CA: SSL_CERT_FILE=ca.pem pyoco-client ...",
    ja="信頼できるサーバーなら、認証局の証明書を指定してください: SSL_CERT_FILE=ca.pem pyoco-client ...",
)
NO_SERVER_ADVICE = Text(
    en="Start a server with: pyoco-server up   or set its URL: --server URL or PYOCO_SERVER_URL",
    ja="起動するには: pyoco-server up   別の場所なら --server URL または PYOCO_SERVER_URL で指定してください",
)

# Params

PARAMS_EXAMPLE = Text(en="example: --params '{{\"x\": 1}}'", ja="例: --params '{{\"x\": 1}}'")
PARAMS_FILE_UNREADABLE = Text(en="--params-file {path}: {reason}", ja="--params-file {path}: {reason}")
WARNING = Text(en="warning: {text}", ja="警告: {text}")
PARAMS_NOT_JSON = Text(
    en="--params is not JSON ({reason}); {example}", ja="--params がJSONではありません（{reason}）。{example}"
)
PARAMS_NOT_OBJECT = Text(
    en="{where} must be a JSON object, not {kind}; {example}",
    ja="{where} はJSONオブジェクトで指定してください（{kind} ではなく）。{example}",
)
PARAM_NOT_PAIR = Text(
    en="--param {pair!r} is not key=value; example: --param rows=3",
    ja="--param {pair!r} は key=value の形式ではありません。例: --param rows=3",
)
NO_WORKFLOW_FILE = Text(
    en="--workflow-file {path}: no such file", ja="--workflow-file {path}: ファイルがありません"
)

# Lists

NO_RUNS = Text(
    en="no runs; submit one with: pyoco-client submit --flow-name …",
    ja="runはありません。投入するには: pyoco-client submit --flow-name …",
)
NO_WORKERS = Text(
    en="no workers; start one with: pyoco-worker --flows DIR",
    ja="workerはいません。起動するには: pyoco-worker --flows DIR",
)
NO_FLOWS = Text(
    en="no flows; start a worker with: pyoco-worker --flows DIR",
    ja="flowはありません。workerを起動するには: pyoco-worker --flows DIR",
)
NO_QUEUES = Text(
    en="no queues; start a worker with: pyoco-worker --flows DIR",
    ja="キューはありません。workerを起動するには: pyoco-worker --flows DIR",
)
PAUSED = Text(en="paused", ja="一時停止中")
NO_WHEELS = Text(
    en="no wheels; register one with: pyoco-client wheel-upload FILE",
    ja="wheelはありません。登録するには: pyoco-client wheel-upload FILE",
)
NO_WHEEL_HISTORY = Text(en="no uploads or deletions yet", ja="登録・削除の履歴はまだありません")
MORE = Text(en="next page: --cursor {cursor}", ja="続き: --cursor {cursor}")

NO_TASKS = Text(en="no tasks yet", ja="タスクはまだありません")

# Help in Japanese

# Run logs

NEGATIVE_TAIL = Text(
    en="--tail {tail}: must be 0 or greater; example: --tail 100",
    ja="--tail {tail}: 0以上の行数を指定してください。例: --tail 100",
)
NO_SUCH_TASK = Text(
    en="--task {task}: no such task in this run; its tasks: {tasks}",
    ja="--task {task}: このrunにそのタスクはありません。タスクの一覧: {tasks}",
)
EXCERPTS_FOLLOW = Text(
    en="… excerpts: the output rate exceeds the storage limit; the last lines follow when the task ends …",
    ja="… 抜粋: 出力が保存の上限を超えています。末尾の行はタスクの終了時に表示します …",
)
STORED_LINES_FOLLOW = Text(en="… end of the excerpts …", ja="… 抜粋はここまで …")

# Watching a run

SERVER_WARNS = Text(en="warning: {warning}", ja="警告: {warning}")

WAITING_FOR_A_WORKER = Text(en="waiting for a worker", ja="worker待ち")
ON_WORKER = Text(en="on {worker_id}", ja="worker {worker_id}")
ATTEMPT = Text(en="attempt {attempt}", ja="{attempt}回目")
MORE_TASKS = Text(en="… and {count} more: {states}", ja="… ほか {count} 件: {states}")
RUN_GOES_ON = Text(
    en="Stopped watching; the run continues. To cancel it:\npyoco-client cancel {run_id}",
    ja="監視を終了しました。runは継続しています。取り消すには:\npyoco-client cancel {run_id}",
)
EXECUTION_GOES_ON = Text(
    en="Stopped watching; the execution continues. To cancel it:\npyoco-client executions cancel {execution_id}",
    ja="監視を終了しました。executionは継続しています。取り消すには:\npyoco-client executions cancel {execution_id}",
)
NOT_ENDED_IN_TIME = Text(
    en="Timed out after {seconds} s; the run continues. To watch it:\npyoco-client watch {run_id}",
    ja="{seconds} 秒でタイムアウトしました。runは継続しています。監視するには:\npyoco-client watch {run_id}",
)

# Executions and graphs

NO_EXECUTIONS = Text(
    en="no executions; start one with: pyoco-client executions create GRAPH_ID",
    ja="executionはありません。開始するには: pyoco-client executions create GRAPH_ID",
)
NO_GRAPHS = Text(
    en="no graphs; register one with: pyoco-client graphs put FILE",
    ja="graphはありません。登録するには: pyoco-client graphs put FILE",
)
NO_RETRY_JOBS = Text(en="no retry jobs", ja="再試行ジョブはありません")
NO_TEMPLATES = Text(
    en="no templates; create one with: pyoco-client templates put TEMPLATE_ID FILE",
    ja="templateはありません。作成するには: pyoco-client templates put TEMPLATE_ID FILE",
)
NO_ACTIONS = Text(
    en="no actions; register one with: pyoco-client actions put KEY --flow-name FLOW",
    ja="actionはありません。登録するには: pyoco-client actions put KEY --flow-name FLOW",
)
NO_API_KEYS = Text(
    en="no API keys; create one with: pyoco-client api-keys create SCOPES",
    ja="API keyはありません。作成するには: pyoco-client api-keys create SCOPES",
)
NO_CHANGES = Text(en="no changes", ja="変更はありません")
NO_EVENTS = Text(en="no events", ja="イベントはありません")
NO_ITEMS = Text(en="no items", ja="itemはありません")
NO_WAITING_NODES = Text(en="no waiting nodes", ja="待機中のnodeはありません")
DATA_NOT_JSON = Text(
    en="--data is not JSON ({reason}); example: --data '{{\"ok\": true}}'",
    ja="--data がJSONではありません（{reason}）。例: --data '{{\"ok\": true}}'",
)
NO_SUCH_FILE = Text(en="{path}: no such file", ja="{path}: ファイルがありません")

# Schedules

NO_SCHEDULES = Text(en="no schedules", ja="スケジュールはありません")
NO_TICKS = Text(en="no ticks yet", ja="まだ実行時刻が来ていません")
NO_LIMITS = Text(en="no limits", ja="リミットはありません")
NO_KEYS = Text(en="no keys in use", ja="使用中のキーはありません")
NO_MATCH = Text(
    en="{path}: match is missing; e.g. match: {{flow: report}}",
    ja="{path}: match がありません。例: match: {{flow: report}}",
)
NO_TARGET = Text(
    en="{path}: target is missing; e.g. target: {{flow: report}}",
    ja="{path}: target がありません。例: target: {{flow: report}}",
)
NOT_APPLIED = Text(en="{path}: not applied", ja="{path}: 適用されませんでした")
NOTHING = Text(en="nothing to apply", ja="適用するものはありません")
PREVIEW_OF_WHAT = Text(
    en="give either a schedule id, or --cron or --every-sec",
    ja="スケジュールのID、または --cron か --every-sec のどちらかを指定してください",
)

# Operations: dead letters, bulk, deletes, alerts, secrets.

NO_LETTERS = Text(en="no dead letters", ja="デッドレターはありません")
NO_OPERATIONS = Text(en="no bulk operations", ja="一括操作はありません")
NO_ALERTS = Text(en="no alerts", ja="アラートはありません")
NO_CHANNELS = Text(en="no channels", ja="通知チャネルはありません")
NO_DELIVERIES = Text(en="no deliveries", ja="配信の記録はありません")
NO_KINDS = Text(en="no on: what it is about, e.g. [run.failed]", ja="on がありません（例: [run.failed]）")
NO_TYPE = Text(en="no type, e.g. webhook", ja="type がありません（例: webhook）")
NO_ITEMS = Text(en="nothing matches", ja="該当するものはありません")
NO_ARTIFACTS = Text(en="the run has no artifacts", ja="このrunにアーティファクトはありません")
FILE_OF_WHAT = Text(
    en="--file: give the name of an artifact", ja="--file: アーティファクトの名前を指定してください"
)
NO_ENDED_RUNS = Text(en="no runs ended in this time", ja="この期間に終了したrunはありません")
WHICH_ITEMS = Text(
    en="give either ids, or filters such as --flow, or --all",
    ja="ID、--flow などの条件、--all のいずれか1つを指定してください",
)

NO_SECRETS = Text(en="no secrets", ja="シークレットはありません")
NO_VARIABLES = Text(en="no variables", ja="変数はありません")
