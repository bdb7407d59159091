"""Japanese `--help` texts, keyed by the English text."""

from pyoco_server.cli.client_operations_texts import OPERATIONS_HELP_JA, SECRETS_HELP_JA
from pyoco_server.cli.client_texts import HELP_JA, SCHEDULES_HELP_JA
from pyoco_server.cli.server_texts import NATS_OPTIONS_JA

HELP_TEXTS = {
    **NATS_OPTIONS_JA,
    **HELP_JA,
    **SCHEDULES_HELP_JA,
    **OPERATIONS_HELP_JA,
    **SECRETS_HELP_JA,
    "Commands": "コマンド",
    "Parameters": "オプション",
    "Arguments": "引数",
    "Display this message and exit.": "このヘルプを表示して終了します。",
    "Display application version.": "バージョンを表示します。",
    "Install completion for your shell (bash, zsh or fish) and enable it in its startup file.": (
        "シェル（bash、zsh、fish）の補完をインストールし、起動ファイルで有効にします。"
    ),
    "Print the completion script for bash, zsh or fish.": (
        "シェル（bash、zsh、fish）の補完スクリプトを表示します。"
    ),
    "Target shell.": "対象のシェル。",
    "Run a command.": "コマンドを実行します。",
    # pyoco-server
    "Run Python workflows on your own machines.": "Pythonのワークフローを自分のマシンで実行します。",
    "Start the gateway. Without a NATS URL it also starts an embedded NATS.": (
        "gatewayを起動します。NATSのURLを指定しなければ、付属のNATSも起動します。"
    ),
    "Listen address (also: PYOCO_HTTP_HOST). The default is reachable from this machine only.": (
        "待ち受けるアドレス（環境変数: PYOCO_HTTP_HOST）。既定ではこのマシンからのみ接続できます。"
    ),
    "Listen port (also: PYOCO_HTTP_PORT).": "待ち受けるポート（環境変数: PYOCO_HTTP_PORT）。",
    "Use this NATS instead of starting one (also: PYOCO_NATS_URL).": (
        "NATSを起動せず、このNATSを使います（環境変数: PYOCO_NATS_URL）。"
    ),
    "Data directory of the embedded NATS.": "付属のNATSのデータディレクトリ。",
    "Directory of the embedded NATS's data and of the gateway's run index.": (
        "付属のNATSのデータと、gatewayのrun索引を置くディレクトリ。"
    ),
    (
        "Embedded NATS only. safe: writes every accepted run to disk before responding, so a power "
        "failure loses nothing; fast: a power failure may lose the last second. Killing the process "
        "loses nothing in either mode."
    ): (
        "付属のNATSのみ。safe: 受け付けたrunをディスクに書いてから応答するため、停電でも失われません。"
        "fast: 停電で直前の1秒分を失うことがあります。どちらも、プロセスの強制終了では失われません。"
    ),
    "Also start a worker for the default tag on this machine.": (
        "このマシンで既定のtagのworkerも起動します。"
    ),
    "Flows of that worker: module:function or path/file.py:function. Default: a sample flow.": (
        "そのworkerが実行するflow: module:function または path/file.py:function。既定: サンプルのflow。"
    ),
    "Instead of --flow-resolver: a directory of flow files (*.py), reloaded on change.": (
        "--flow-resolver の代わり: flowのファイル（*.py）のディレクトリ。変更されると読み直します。"
    ),
    "Minimum log level (also: PYOCO_LOG_LEVEL).": (
        "このレベル以上のログを出力します（環境変数: PYOCO_LOG_LEVEL）。"
    ),
    "Dashboard language (also: PYOCO_DASHBOARD_LANG).": (
        "ダッシュボードの言語（環境変数: PYOCO_DASHBOARD_LANG）。"
    ),
    "Start NATS with nats-bootstrap (installed separately), and stop it on exit.": (
        "nats-bootstrap（別途インストール）でNATSを起動し、終了時に停止します。"
    ),
    "With --with-nats-bootstrap: NATS listen address. Default: 127.0.0.1": (
        "--with-nats-bootstrap と併用: NATSが待ち受けるアドレス。既定: 127.0.0.1"
    ),
    "With --with-nats-bootstrap: NATS client port. Default: 4222": (
        "--with-nats-bootstrap と併用: クライアント用のポート。既定: 4222"
    ),
    "With --with-nats-bootstrap: NATS monitoring port. Default: 8222": (
        "--with-nats-bootstrap と併用: 監視用のポート。既定: 8222"
    ),
    "With --with-nats-bootstrap: start timeout in seconds. Default: 20": (
        "--with-nats-bootstrap と併用: 起動のタイムアウト（秒）。既定: 20"
    ),
    "Start everything, run a sample flow and show its progress.": (
        "すべてを起動し、サンプルのflowを実行してその様子を表示します。"
    ),
    "Keep running afterwards.": "実行後も起動したままにします。",
    "Show a whole installation instead, with two workers, and keep running: flows, failures, schedules, "
    "limits, people to be asked, dead letters.": "代わりに、ワーカー 2 台の環境にサンプルデータを入れ、"
    "起動したままにします（フロー、失敗、スケジュール、制限、人の回答待ち、デッドレター）。",
    "Gateway port. Default: a free port.": "gatewayのポート。既定: 空いているポート。",
    "Print the OpenAPI document of the HTTP API as JSON.": "HTTP APIのOpenAPI定義をJSONで表示します。",
    "Create a starter project: flows, a flow.yaml, a graph, a template and tests.": (
        "ひな形のプロジェクトを作成します: flow、flow.yaml、graph、template、テスト。"
    ),
    "Target directory; created if missing.": "作成先のディレクトリ。なければ作成します。",
    "Write into a non-empty directory; files of the same name are replaced.": (
        "空でないディレクトリにも書き込みます。同名のファイルは置き換えます。"
    ),
    "Check this machine and the installation, and suggest fixes. Exit code 1 if a check fails.": (
        "このマシンと構成を診断し、対処方法を表示します。問題があれば終了コードは1です。"
    ),
    (
        "Gateway URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else "
        "http://127.0.0.1:8000"
    ): (
        "gatewayのURL（環境変数: PYOCO_SERVER_URL）。既定: このディレクトリで起動したサーバー、"
        "なければ http://127.0.0.1:8000"
    ),
    "NATS URL to check (also: PYOCO_NATS_URL). Default: the embedded NATS of --data-dir.": (
        "診断するNATSのURL（環境変数: PYOCO_NATS_URL）。既定: --data-dir の付属のNATS。"
    ),
    # pyoco-worker
    "Run flows submitted to a pyoco-server.": "pyoco-serverに投入されたflowを実行します。",
    "Start a worker.": "workerを起動します。",
    (
        "Source of flows: a function that returns a flow by name (module:function or "
        "path/file.py:function), or a module of flows (my_package.flows or path/flows.py)."
    ): (
        "flowの取得元: 名前からflowを返す関数（module:function または path/file.py:function）、"
        "またはflowのモジュール（my_package.flows または path/flows.py）。"
    ),
    (
        "NATS URL of the server (also: PYOCO_NATS_URL). Default: the server started in this directory, "
        "else nats://127.0.0.1:4222"
    ): (
        "サーバーのNATSのURL（環境変数: PYOCO_NATS_URL）。既定: "
        "このディレクトリで起動したサーバーのNATS、なければ nats://127.0.0.1:4222"
    ),
    "Take jobs with these tags, e.g. cpu,linux. Default: PYOCO_DEFAULT_TAG.": (
        "これらのtagのジョブを受け取ります。例: cpu,linux。既定: PYOCO_DEFAULT_TAG。"
    ),
    "Unique worker id. Default: the host name.": "workerのid（一意）。既定: ホスト名。",
    "Number of concurrent flows, each in its own process. Default: the number of CPUs.": (
        "同時に実行するflowの数。それぞれ別のプロセスで実行します。既定: CPUの数。"
    ),
    "Replace a process after this many runs; 0: never.": (
        "この回数のrunを実行したプロセスを入れ替えます。0: 入れ替えません。"
    ),
    "Replace a process that exceeds this size after a run; 0: never.": (
        "run終了後のメモリがこの値（MB）を超えたプロセスを入れ替えます。0: 入れ替えません。"
    ),
    (
        "After SIGTERM or Ctrl-C: seconds to wait for running flows before they are returned to the "
        "queue. A second Ctrl-C returns them immediately."
    ): (
        "SIGTERM または Ctrl-C の後、実行中のflowの終了を待つ秒数。過ぎるとキューへ戻します。もう一度 "
        "Ctrl-C を押すと、すぐに戻します。"
    ),
    "Install the wheels registered for these tags (also: PYOCO_WHEEL_SYNC_ENABLED).": (
        "これらのtagに登録されたwheelをインストールします（環境変数: PYOCO_WHEEL_SYNC_ENABLED）。"
    ),
    "Install directory for wheels (also: PYOCO_WHEEL_SYNC_DIR).": (
        "wheelのインストール先（環境変数: PYOCO_WHEEL_SYNC_DIR）。"
    ),
    "Seconds between two wheel syncs (also: PYOCO_WHEEL_SYNC_INTERVAL_SEC).": (
        "新しいwheelを確認する間隔（秒。環境変数: PYOCO_WHEEL_SYNC_INTERVAL_SEC）。"
    ),
    "Timeout in seconds for installing one wheel (also: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC).": (
        "wheel 1個のインストールを待つ秒数（環境変数: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC）。"
    ),
    "With --run-once: seconds to wait for a job.": "--run-once と併用: ジョブを待つ秒数。",
    "Handle at most one job and stop.": "ジョブを最大1件処理して終了します。",
    # pyoco-client
    "Submit and inspect runs on a pyoco-server.": "pyoco-serverにrunを投入し、状態を確認します。",
    (
        "Server URL (also: PYOCO_SERVER_URL). Default: the server started in this directory, else "
        "http://127.0.0.1:8000"
    ): (
        "サーバーのURL（環境変数: PYOCO_SERVER_URL）。既定: このディレクトリで起動したサーバー、"
        "なければ http://127.0.0.1:8000"
    ),
    "API key for a server with authentication (also: PYOCO_API_KEY, PYOCO_API_KEY_FILE).": (
        "認証が有効なサーバーのAPI key（環境変数: PYOCO_API_KEY、PYOCO_API_KEY_FILE）。"
    ),
    "HTTP header for the API key.": "API keyを送るHTTPヘッダー。",
    # Runs
    "Submit a run and print its id.": "runを投入し、idを表示します。",
    "Params as a JSON object, e.g. '{\"x\": 1}'.": "パラメーター（JSON object）。例: '{\"x\": 1}'。",
    "File with the params, JSON or YAML.": "パラメーターのファイル（JSON または YAML）。",
    "One param as key=value; may be repeated. The last value of a key wins.": (
        "パラメーター1つ（key=value）。複数回指定できます。同じkeyは最後の指定が有効です。"
    ),
    "Tag of the worker to run on.": "実行するworkerのtag。",
    "Labels for filtering, e.g. nightly,eu.": "絞り込み用のラベル。例: nightly,eu。",
    "Idempotency key; submitting again with the same key and input returns the same run.": (
        "冪等キー。同じキーと入力で再度投入すると、同じrunを返します。"
    ),
    "Wait until the run ends; exit code 0 if it completed.": (
        "runの終了まで待ちます。正常終了なら終了コードは0です。"
    ),
    "With --wait: timeout in seconds.": "--wait と併用: タイムアウト（秒）。",
    "Submit a flow.yaml and print the run id.": "flow.yamlを投入し、runのidを表示します。",
    "Path to the flow.yaml.": "flow.yamlのパス。",
    "Flow name shown in lists.": "一覧に表示するflowの名前。",
    "Print the current state of a run.": "runの現在の状態を表示します。",
    "Run id.": "runのid。",
    "Include task_records.": "task_records を含めます。",
    "Output format.": "出力形式。",
    "Print the tasks of a run and their records.": "runのタスクとその記録を表示します。",
    "Print the output of a run.": "runの出力を表示します。",
    "Filter by task.": "タスクで絞り込みます。",
    "Number of lines from the end. Default: all stored lines.": (
        "末尾からの行数。既定: 保存されている全行。"
    ),
    "Print new lines until the run ends.": "runが終わるまで、新しい行を表示し続けます。",
    (
        "text: the raw output (in a terminal without control codes); json: with task, stream and time; "
        "one object per line with --follow."
    ): (
        "text: 出力のまま（端末では制御文字を除く）、json: タスク・ストリーム・時刻付き（--follow "
        "では1行に1オブジェクト）。"
    ),
    (
        "For `pyoco-server up` with the embedded NATS: its data directory, .pyoco by default. The "
        "server must not be running."
    ): (
        "付属のNATSで動かす `pyoco-server up` 向け: データディレクトリ（既定は .pyoco）。"
        "サーバーは停止しておいてください。"
    ),
    "List runs, newest first.": "runの一覧を新しい順に表示します。",
    "Filter by status: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED.": (
        "状態で絞り込みます: PENDING、RUNNING、COMPLETED、FAILED、CANCELLING、CANCELLED。"
    ),
    "Filter by flow.": "flowで絞り込みます。",
    "Filter by tag.": "tagで絞り込みます。",
    "Include all fields.": "すべての項目を表示します。",
    "Maximum number of entries (up to 200).": "件数の上限（最大200）。",
    "Print one page of runs and the cursor of the next page.": (
        "runの一覧を1ページと、次のページのcursorを表示します。"
    ),
    "Only runs updated after this Unix time.": "この時刻（UNIX秒）より後に更新されたrunのみ。",
    "Only runs updated before this Unix time.": "この時刻（UNIX秒）より前に更新されたrunのみ。",
    "Filter by the SHA-256 of the flow.yaml.": "flow.yamlのSHA-256で絞り込みます。",
    "Watch a run.": "runを監視します。",
    "Only changes after this Unix time.": "この時刻（UNIX秒）より後の変化のみ。",
    "Stop after this many seconds.": "この秒数で終了します。",
    "Stop after this many events.": "この件数のイベントで終了します。",
    "Exit with code 1 if the run has not ended when the watch stops.": (
        "監視の終了時にrunが終了していなければ、終了コード1で終了します。"
    ),
    (
        "live: a view updated in place; status: one line per change; json: one event per line. "
        "Default: live in a terminal, else json."
    ): (
        "live: 画面を更新しながら表示、status: 変化ごとに1行、json: 1行に1イベント。既定: "
        "端末ではlive、それ以外ではjson。"
    ),
    "Same as --output json.": "--output json と同じです。",
    "Cancel a run.": "runを取り消します。",
    "Reason, stored with the run.": "理由。runに記録されます。",
    "Wait until the run ends.": "runの終了まで待ちます。",
    # The fleet
    "List workers.": "workerの一覧を表示します。",
    "active: live workers; all: also stopped and disconnected ones.": (
        "active: 稼働中のworkerのみ、all: 停止・切断したworkerも含む。"
    ),
    "Filter by state: RUNNING, IDLE, STOPPED_GRACEFUL or DISCONNECTED.": (
        "状態で絞り込みます: RUNNING、IDLE、STOPPED_GRACEFUL、DISCONNECTED。"
    ),
    "Include hidden workers.": "非表示のworkerも含めます。",
    "Maximum number of entries (up to 500).": "件数の上限（最大500）。",
    "Hide a worker from lists.": "workerを一覧で非表示にします。",
    "Worker id.": "workerのid。",
    "Unhide a worker.": "非表示のworkerを再表示します。",
    "Print the server's metrics in Prometheus format.": "メトリクスをPrometheus形式で表示します。",
    # Wheels
    "List registered wheels.": "登録済みのwheelの一覧を表示します。",
    "List wheel uploads and deletions, newest first.": "wheelの登録と削除の履歴を新しい順に表示します。",
    "Filter by wheel.": "wheelで絞り込みます。",
    "Filter by action.": "操作（登録・削除）で絞り込みます。",
    "Check a wheel and register it for installation on workers.": (
        "wheelを検査し、workerにインストールするために登録します。"
    ),
    "Wheel file, e.g. dist/my_flows-1.0-py3-none-any.whl.": (
        "wheelファイル。例: dist/my_flows-1.0-py3-none-any.whl。"
    ),
    "Target workers by tag, e.g. cpu,linux. Default: all workers.": (
        "対象のworkerのtag。例: cpu,linux。既定: すべてのworker。"
    ),
    "No effect; kept for compatibility. A new upload needs a higher version.": (
        "互換性のために残しています（効果はありません）。登録できるのは、より新しいバージョンのみです。"
    ),
    "Delete a wheel; workers uninstall it at their next sync.": (
        "wheelを削除します。workerは次回の同期でアンインストールします。"
    ),
    "Wheel file name, e.g. my_flows-1.0-py3-none-any.whl.": (
        "wheelのファイル名。例: my_flows-1.0-py3-none-any.whl。"
    ),
    # Executions and graphs
    "List nodes waiting for a person, oldest first.": "人の対応を待っているnodeを古い順に表示します。",
    "next_cursor of the previous page.": "前のページの next_cursor。",
    "Resume a waiting node.": "待機中のnodeを再開します。",
    "Execution id.": "executionのid。",
    "Waiting node.": "待機中のnode。",
    "Resume data as JSON; becomes the output of a wait node.": (
        "再開時に渡すデータ（JSON）。waitのnodeではそのまま出力になります。"
    ),
    "The node's wait_key, if it has one.": "nodeの wait_key（ある場合）。",
    "Register and inspect graphs.": "graphを登録・参照します。",
    "Register a graph as its next version; an unchanged graph keeps its version.": (
        "graphを次のバージョンとして登録します。変更がなければバージョンは変わりません。"
    ),
    "Graph definition: YAML, or JSON if named *.json.": (
        "graphの定義ファイル（YAML、拡張子が .json ならJSON）。"
    ),
    "Graph id. Default: the id in the file, else the file name without extension.": (
        "graphのid。既定: ファイル内のid、なければ拡張子を除いたファイル名。"
    ),
    "Print a graph.": "graphを表示します。",
    "List the latest version of each graph.": "各graphの最新バージョンの一覧を表示します。",
    "Start, watch and control graph executions.": "graphのexecutionを開始・監視・操作します。",
    "Start an execution of a graph.": "graphのexecutionを開始します。",
    "Graph id.": "graphのid。",
    "File with the input, JSON or YAML.": "入力のファイル（JSON または YAML）。",
    "Input as JSON.": "入力（JSON）。",
    "One input value as key=value; may be repeated. The last value of a key wins.": (
        "入力の値1つ（key=value）。複数回指定できます。同じkeyは最後の指定が有効です。"
    ),
    "Execution id to use. Default: a generated id.": "使用するexecutionのid。既定: 自動生成。",
    "Graph version. Default: the latest.": "graphのバージョン。既定: 最新。",
    ("Create the execution without starting it; start it later with: executions command ID StartExecution"): (
        "作成のみ行います。後で開始するには: executions command ID StartExecution"
    ),
    "Wait until the execution ends; exit code 1 unless it completed.": (
        "executionの終了まで待ちます。正常終了でなければ終了コードは1です。"
    ),
    "Idempotency key; repeated calls with the same key create one execution.": (
        "冪等キー。同じキーで何度実行しても、executionは1つだけ作成されます。"
    ),
    "Print the state of an execution.": "executionの状態を表示します。",
    "State after the event with this sequence number.": "この番号のイベント直後の状態。",
    "List executions, newest first.": "executionの一覧を新しい順に表示します。",
    "Filter by status.": "状態で絞り込みます。",
    "Filter by graph.": "graphで絞り込みます。",
    "List archived executions only.": "アーカイブ済みのもののみ。",
    "Print the event log of an execution.": "executionのイベントログを表示します。",
    "Only events after this sequence number.": "この番号より後のイベントのみ。",
    "Maximum number of events (up to 1000).": "件数の上限（最大1000）。",
    "Watch an execution until it ends.": "executionを終了まで監視します。",
    "json: one event per line; status: one short line per event.": (
        "json: 1行に1イベント、status: イベントごとに短い1行。"
    ),
    "Cancel an execution. Once accepted, the execution ends as CANCELED.": (
        "executionを取り消します。受理された後は、必ず CANCELED で終了します。"
    ),
    "Reason, stored with the execution.": "理由。executionに記録されます。",
    "Archive an ended execution: hide it from the default list.": (
        "終了したexecutionをアーカイブし、既定の一覧から外します。"
    ),
    "Run an execution again as a new one with the same graph version and input.": (
        "同じバージョンのgraphと入力で、新しいexecutionとして再実行します。"
    ),
    "start: run every node again; failed: reuse the outputs of succeeded nodes.": (
        "start: すべてのnodeを再実行、failed: 成功済みのnodeの出力を引き継ぐ。"
    ),
    "Send any command, such as StartExecution, StartNode, SucceedNode or FailNode.": (
        "任意のコマンド（StartExecution、StartNode、SucceedNode、FailNode など）を送ります。"
    ),
    "Command name.": "コマンド名。",
    "One command field as key=value; may be repeated: --field node_id=book --field worker_id=me": (
        "コマンドの項目1つ（key=value）。複数回指定できます: --field node_id=book --field worker_id=me"
    ),
    "All command fields as JSON.": "コマンドの全項目（JSON）。",
    "Idempotency key; repeated calls with the same key take effect once.": (
        "冪等キー。同じキーで何度実行しても、効果は1回だけです。"
    ),
    # Workflow events
    "Send workflow events and inspect their results.": "ワークフローイベントを送信し、結果を参照します。",
    "Send an event and print the run or execution it started or resumed.": (
        "イベントを送信し、開始または再開したrunやexecutionを表示します。"
    ),
    "Template to start.": "開始するtemplate。",
    "Alternative to --template-id: the first action of the template.": (
        "--template-id の代わり: templateの最初のaction。"
    ),
    "Idempotency key; an event with a known key starts nothing.": "冪等キー。同じキーでは開始しません。",
    "Year of the period to process.": "対象の年。",
    "Month of the period to process.": "対象の月。",
    'JSON object for the flow; available as params["event"].': (
        'flowに渡すJSON object。flowでは params["event"] で参照します。'
    ),
    "Name of the sender.": "送信元。",
    "Free text.": "備考。",
    "File with the data, JSON or YAML.": "データのファイル（JSON または YAML）。",
    "With --node-id: resume this execution's node with the data instead of starting a template.": (
        "--node-id と併用: templateを開始せず、このexecutionのnodeをデータ付きで再開します。"
    ),
    "Node to resume; it may not be waiting yet.": "再開するnode。まだ待機中でなくてもかまいません。",
    "Resume the node waiting with this key.": "このキーで待機しているnodeを再開します。",
    "Event token, if required (also: AX_WORKFLOW_EVENT_TOKEN, AX_WORKFLOW_EVENT_TOKEN_FILE).": (
        "イベントのトークン（必要な場合。環境変数: AX_WORKFLOW_EVENT_TOKEN、AX_WORKFLOW_EVENT_TOKEN_FILE）。"
    ),
    "Print the monthly event summary.": "月ごとのイベント集計を表示します。",
    "Month as YYYY-MM.": "月（YYYY-MM）。",
    "Number of recent events to include (up to 200).": "表示する最新の件数（最大200）。",
    "Print the retry jobs.": "再試行ジョブの一覧を表示します。",
    "Process the retry queue now.": "再試行キューを今すぐ処理します。",
    "Maximum number of jobs (up to 50).": "件数の上限（最大50）。",
    "Include jobs that are not due yet.": "再試行の予定時刻前のジョブも対象にします。",
    "Reset a retry job's attempts and make it due now.": (
        "再試行ジョブの試行回数をリセットし、すぐに再試行できるようにします。"
    ),
    "Retry job id.": "再試行ジョブのid。",
    "Discard a retry job.": "再試行ジョブを破棄します。",
    "Replay an event.": "イベントを再送します。",
    "Event id from the response or the summary.": "イベントのid（応答または集計に表示されます）。",
    "Manage workflow templates.": "ワークフローのtemplateを管理します。",
    "List all templates.": "templateの一覧を表示します。",
    "Print a template.": "templateを表示します。",
    "Template id.": "templateのid。",
    "Create or update a template.": "templateを作成または更新します。",
    "Template definition, JSON or YAML.": "templateの定義ファイル（JSON または YAML）。",
    "Filter in CEL; other events start nothing. It reads event, event_name and source.": (
        "イベントの条件（CEL）。event・event_name・source を参照できます。"
        "条件を満たさないイベントは何も起動しません。"
    ),
    "Events need no year and month.": "イベントに year と month を求めません。",
    "Update only if the stored template has this updated_at.": (
        "保存済みのtemplateの updated_at が一致する場合のみ更新します。"
    ),
    "Delete a template.": "templateを削除します。",
    "Start a template manually.": "templateを手動で開始します。",
    "Manage the actions that templates may use.": "templateで使えるactionを管理します。",
    "List all actions.": "actionの一覧を表示します。",
    "Register an action that runs a flow or a registered graph.": (
        "flowまたは登録済みのgraphを実行するactionを登録します。"
    ),
    "Action key used in template steps.": "templateのstepで使うactionのkey。",
    "Flow to run.": "実行するflow。",
    "Graph to run instead of a flow.": "flowの代わりに実行するgraph。",
    "Tag of the workers that run it.": "実行するworkerのtag。",
    "JSON object with params for every run.": "すべてのrunに渡すパラメーター（JSON object）。",
    "Run one at a time; further events wait.": "同時に1つだけ実行します。後続のイベントは待機します。",
    "Delete an action.": "actionを削除します。",
    "Action key.": "actionのkey。",
    # pyoco-server-admin
    "Administer a pyoco-server through its NATS.": "pyoco-serverをNATS経由で管理します。",
    "Manage API keys for a gateway with PYOCO_HTTP_AUTH_MODE=api_key.": (
        "PYOCO_HTTP_AUTH_MODE=api_key のgatewayで使うAPI keyを管理します。"
    ),
    "Create an API key and print it. The key is shown only once.": (
        "API keyを発行して表示します。keyが表示されるのはこの1回だけです。"
    ),
    "Tenant that owns the key's runs: [A-Za-z0-9_-]{1,64}.": (
        "このkeyのrunが属するtenant: [A-Za-z0-9_-]{1,64}。"
    ),
    "List all API keys, including revoked ones.": "API keyの一覧を、失効したものも含めて表示します。",
    "Revoke an API key. Gateways apply it within a second.": (
        "API keyを失効させます。gatewayには1秒以内に反映されます。"
    ),
    "Key id: the part between `pyoco_` and the dot.": "API keyのid: `pyoco_` とドットの間の部分。",
    "Export workflow events.": "ワークフローイベントを書き出します。",
    "Write receipts.json, retry_jobs.json and notification_settings.json.": (
        "receipts.json、retry_jobs.json、notification_settings.json を書き出します。"
    ),
    "Target directory; created if missing. The webhook URL is masked.": (
        "書き出し先のディレクトリ。なければ作成します。webhookのURLはマスクされます。"
    ),
    "Back up all pyoco-server data from NATS while the server runs.": (
        "NATSにあるpyoco-serverの全データを、稼働中のままバックアップします。"
    ),
    "Target directory; new or empty.": "保存先のディレクトリ（新規または空）。",
    "Restore a backup into a NATS without pyoco-server data.": (
        "バックアップを、pyoco-serverのデータがないNATSに復元します。"
    ),
    "Directory written by `backup`.": "`backup` が書き出したディレクトリ。",
}
