"""The texts of `--help` in Japanese, by the English ones: of commands, options and the page itself."""

HELP_TEXTS = {
    # The page
    "Commands": "コマンド",
    "Parameters": "オプション",
    "Arguments": "引数",
    "Display this message and exit.": "このヘルプを表示して終了します。",
    "Display application version.": "バージョンを表示します。",
    "Install completion for your shell (bash, zsh or fish) and switch it on in its startup file.": (
        "シェル（bash、zsh、fish）の補完をインストールし、起動ファイルで有効にします。"
    ),
    "Print the completion script of a shell: bash, zsh or fish.": (
        "シェル（bash、zsh、fish）の補完スクリプトを表示します。"
    ),
    "The shell it is for.": "対象のシェル。",
    "Run a command.": "コマンドを実行します。",
    # pyoco-server
    "Run Python workflows on your own machines.": "Pythonのワークフローを自分のマシンで実行します。",
    "Start the gateway. Without a NATS url it brings its own NATS along.": (
        "gatewayを起動します。NATSのURLを指定しなければ、付属のNATSも起動します。"
    ),
    "Address to listen on (also: PYOCO_HTTP_HOST). The default is reachable from this machine only.": (
        "待ち受けるアドレス（環境変数: PYOCO_HTTP_HOST）。既定ではこのマシンからのみ接続できます。"
    ),
    "Port to listen on (also: PYOCO_HTTP_PORT).": "待ち受けるポート（環境変数: PYOCO_HTTP_PORT）。",
    "Use this NATS instead of starting one (also: PYOCO_NATS_URL).": (
        "NATSを起動せず、このNATSを使います（環境変数: PYOCO_NATS_URL）。"
    ),
    "Where the embedded NATS keeps its data.": "付属のNATSがデータを置くディレクトリ。",
    "Embedded NATS only. safe: every accepted run is on disk before it is answered, so a power cut loses "
    "nothing; fast: a power cut may lose the last second. A killed process loses nothing in either.": (
        "付属のNATSのみ。safe: 受け付けたrunをディスクに書いてから応答するため、停電でも失われません。"
        "fast: 停電で直前の1秒を失うことがあります。プロセスが強制終了されても、どちらも失われません。"
    ),
    "Also start a worker for the default tag on this machine.": (
        "このマシンで既定のtagのworkerも起動します。"
    ),
    "Which flows that worker runs: module:function or path/file.py:function. Default: a sample flow.": (
        "そのworkerが実行するflow: module:function または path/file.py:function。既定: サンプルのflow。"
    ),
    "Instead of --flow-resolver: a directory of flow files (*.py), loaded again when they change.": (
        "--flow-resolver の代わり: flowのファイル（*.py）のディレクトリ。変更されると読み直します。"
    ),
    "Log this level and above (also: PYOCO_LOG_LEVEL).": (
        "このレベル以上のログを出力します（環境変数: PYOCO_LOG_LEVEL）。"
    ),
    "Language of the dashboard (also: PYOCO_DASHBOARD_LANG).": (
        "ダッシュボードの言語（環境変数: PYOCO_DASHBOARD_LANG）。"
    ),
    "Have the program nats-bootstrap (installed separately) start a NATS, and stop it at the end.": (
        "nats-bootstrap（別途インストール）でNATSを起動し、終了時に停止します。"
    ),
    "With --with-nats-bootstrap: the address that NATS listens on. Default: 127.0.0.1": (
        "--with-nats-bootstrap と併用: NATSが待ち受けるアドレス。既定: 127.0.0.1"
    ),
    "With --with-nats-bootstrap: the port for clients. Default: 4222": (
        "--with-nats-bootstrap と併用: クライアント用のポート。既定: 4222"
    ),
    "With --with-nats-bootstrap: the port for monitoring. Default: 8222": (
        "--with-nats-bootstrap と併用: 監視用のポート。既定: 8222"
    ),
    "With --with-nats-bootstrap: how long its start may take. Default: 20": (
        "--with-nats-bootstrap と併用: 起動を待つ秒数。既定: 20"
    ),
    "Start everything, run a sample flow and show it live.": (
        "すべてを起動し、サンプルのflowを実行してその様子を表示します。"
    ),
    "Stay up afterwards, to be tried by hand.": "終了せずに起動したままにします。",
    "Port of the gateway; any free one by default.": "gatewayのポート。既定: 空いているポート。",
    "Print the description of the HTTP API (OpenAPI, as JSON).": (
        "HTTP APIの定義（OpenAPI、JSON）を表示します。"
    ),
    "Write a small project to start from: flows, a flow.yaml, a graph, a template, tests.": (
        "ひな形のプロジェクトを作成します: flow、flow.yaml、graph、template、テスト。"
    ),
    "Where to; it is made if it is not there.": "作成先のディレクトリ。なければ作成します。",
    "Also into a directory that is not empty; files of the same name are replaced.": (
        "空でないディレクトリにも書き込みます。同名のファイルは置き換えます。"
    ),
    "Look at this machine and the installation, and say what to do. Exit code 1: something has to be "
    "fixed.": "このマシンと構成を診断し、対処方法を表示します。修正が必要なら終了コードは1です。",
    "Address of the gateway (also: PYOCO_SERVER_URL). Default: http://127.0.0.1:8000": (
        "gatewayのアドレス（環境変数: PYOCO_SERVER_URL）。既定: http://127.0.0.1:8000"
    ),
    "Address of the gateway (also: PYOCO_SERVER_URL). Default: the server of this directory, else "
    "http://127.0.0.1:8000": (
        "gatewayのアドレス（環境変数: PYOCO_SERVER_URL）。既定: このディレクトリのサーバー、なければ "
        "http://127.0.0.1:8000"
    ),
    "The NATS to look at (also: PYOCO_NATS_URL). Default: the embedded one of --data-dir.": (
        "診断するNATS（環境変数: PYOCO_NATS_URL）。既定: --data-dir の付属のNATS。"
    ),
    "For programs: the same in every language.": "プログラム向けのJSON。言語によらず同じ内容です。",
    # pyoco-worker
    "Run flows that were submitted to a pyoco-server.": "pyoco-serverに投入されたflowを実行します。",
    "Start a worker.": "workerを起動します。",
    "Where flows come from: a function that finds a flow by its name (module:function or "
    "path/file.py:function), or a module of flows (my_package.flows or path/flows.py).": (
        "flowの取得元: 名前からflowを返す関数（module:function または path/file.py:function）、"
        "またはflowのモジュール（my_package.flows または path/flows.py）。"
    ),
    "The NATS of the server (also: PYOCO_NATS_URL).": "サーバーのNATS（環境変数: PYOCO_NATS_URL）。",
    "The NATS of the server (also: PYOCO_NATS_URL). Default: that of the server of this directory, else "
    "nats://127.0.0.1:4222": (
        "サーバーのNATS（環境変数: PYOCO_NATS_URL）。既定: このディレクトリのサーバーのNATS、なければ "
        "nats://127.0.0.1:4222"
    ),
    "Take jobs of these tags, e.g. cpu,linux. Default: PYOCO_DEFAULT_TAG.": (
        "これらのtagのジョブを受け取ります。例: cpu,linux。既定: PYOCO_DEFAULT_TAG。"
    ),
    "How the worker is called in lists; the host's name by default. One per running worker.": (
        "一覧に表示するworkerの名前。既定: ホスト名。稼働中のworkerごとに別の名前にしてください。"
    ),
    "How many flows run at once, each in a process of its own. Default: the number of CPUs.": (
        "同時に実行するflowの数。それぞれ別のプロセスで実行します。既定: CPUの数。"
    ),
    "Replace a process after so many runs; 0: never.": (
        "この回数のrunを実行したプロセスを入れ替えます。0: 入れ替えません。"
    ),
    "Replace a process that has grown beyond this after a run; 0: never.": (
        "run終了後のメモリがこの値（MB）を超えたプロセスを入れ替えます。0: 入れ替えません。"
    ),
    "After SIGTERM: how many seconds running flows may take to end before they are given back.": (
        "SIGTERMの後、実行中のflowの終了を待つ秒数。過ぎるとキューへ戻します。"
    ),
    "After SIGTERM or Ctrl-C: how many seconds running flows may take to end before they are given back. A "
    "second Ctrl-C gives them back at once.": (
        "SIGTERM または Ctrl-C の後、実行中のflowの終了を待つ秒数。過ぎるとキューへ戻します。"
        "もう一度 Ctrl-C を押すと、すぐに戻します。"
    ),
    "Install the wheels that are registered for these tags (also: PYOCO_WHEEL_SYNC_ENABLED).": (
        "これらのtagに登録されたwheelをインストールします（環境変数: PYOCO_WHEEL_SYNC_ENABLED）。"
    ),
    "Where they are installed (also: PYOCO_WHEEL_SYNC_DIR).": (
        "wheelのインストール先（環境変数: PYOCO_WHEEL_SYNC_DIR）。"
    ),
    "How often to look for new ones (also: PYOCO_WHEEL_SYNC_INTERVAL_SEC).": (
        "新しいwheelを確認する間隔（秒。環境変数: PYOCO_WHEEL_SYNC_INTERVAL_SEC）。"
    ),
    "How long installing one may take (also: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC).": (
        "wheel 1個のインストールを待つ秒数（環境変数: PYOCO_WHEEL_INSTALL_TIMEOUT_SEC）。"
    ),
    "With --run-once: how many seconds to wait for a job.": "--run-once と併用: ジョブを待つ秒数。",
    "Handle one job (or none, if none comes) and stop.": (
        "ジョブを1件処理して終了します。来なければ何もせずに終了します。"
    ),
    # pyoco-client
    "Submit runs to a pyoco-server and look at them.": "pyoco-serverにrunを投入し、参照します。",
    "Address of the server (also: PYOCO_SERVER_URL). Default: http://127.0.0.1:8000": (
        "サーバーのアドレス（環境変数: PYOCO_SERVER_URL）。既定: http://127.0.0.1:8000"
    ),
    "Address of the server (also: PYOCO_SERVER_URL). Default: the server of this directory, else "
    "http://127.0.0.1:8000": (
        "サーバーのアドレス（環境変数: PYOCO_SERVER_URL）。既定: このディレクトリのサーバー、なければ "
        "http://127.0.0.1:8000"
    ),
    "Key for a server with auth on (also: PYOCO_API_KEY).": (
        "認証が有効なサーバーのAPI key（環境変数: PYOCO_API_KEY）。"
    ),
    "The header that carries the key.": "API keyを送るヘッダー。",
    # Runs
    "Submit a run and print its id.": "runを投入し、idを表示します。",
    "The flow to run.": "実行するflow。",
    "Its params as a JSON object, e.g. '{\"x\": 1}'.": "パラメーター（JSON object）。例: '{\"x\": 1}'。",
    "A file with the params, JSON or YAML.": "パラメーターのファイル（JSON または YAML）。",
    "One param as key=value; may be repeated. Of a param that is given twice, the last one counts.": (
        "パラメーター1つ（key=value）。複数回指定できます。同じものは最後の指定が有効です。"
    ),
    "Run it on a worker with this tag.": "このtagのworkerで実行します。",
    "Tags to find it by, e.g. nightly,eu.": "検索用のtag。例: nightly,eu。",
    "Submitting again with the same key and input is the same run.": (
        "同じkeyと入力で再度投入しても、同じrunになります。"
    ),
    "Follow the run to its end; the exit code is 0 if it completed.": (
        "runの終了まで監視します。正常終了なら終了コードは0です。"
    ),
    "With --wait: stop waiting after so many seconds.": "--wait と併用: 待つ秒数の上限。",
    "Submit a flow.yaml and print the run's id.": "flow.yamlを投入し、runのidを表示します。",
    "The file.": "ファイル。",
    "How the flow is called in lists.": "一覧に表示するflowの名前。",
    "Print the latest state of a run.": "runの最新の状態を表示します。",
    "The run.": "run。",
    "With the records of its tasks.": "タスクの記録も表示します。",
    "json for programs, table for people.": "json: プログラム向け、table: 人が読む表。",
    "Print the tasks of a run and their records.": "runのタスクとその記録を表示します。",
    "Print what a run's flow printed.": "runのflowの出力を表示します。",
    "Lines of this task only.": "このタスクの行のみ。",
    "Only the last so many lines; default: all that are kept.": "末尾からの行数。省略時は全行。",
    "Go on with new lines until the run has ended.": "runが終わるまで、新しい行を表示し続けます。",
    (
        "text: as it was printed (to a terminal: without control codes); json: with task, stream and time, "
        "with --follow one object a line."
    ): (
        "text: 出力のまま（端末では制御文字を除く）、json: タスク、ストリーム、時刻つき"
        "（--follow では1行に1オブジェクト）。"
    ),
    (
        "Restore for `pyoco-server up` with its own NATS: the directory that it keeps its data in, .pyoco by "
        "default. The server must not be running."
    ): (
        "内蔵NATSで動かす `pyoco-server up` 向けの復元先。データのディレクトリ（既定は .pyoco）を指定します。"
        "サーバーは停止しておいてください。"
    ),
    "Print runs, newest first.": "runの一覧を新しい順に表示します。",
    "Only these: PENDING, RUNNING, COMPLETED, FAILED, CANCELLING or CANCELLED.": (
        "状態で絞り込みます: PENDING、RUNNING、COMPLETED、FAILED、CANCELLING、CANCELLED。"
    ),
    "Only runs of this flow.": "このflowのrunのみ。",
    "Only runs with this tag.": "このtagのrunのみ。",
    "With everything that is known of each.": "すべての項目を表示します。",
    "At most so many (up to 200).": "件数の上限（最大200）。",
    "Print one page of runs and the cursor of the next.": (
        "runの一覧を1ページと、次のページのcursorを表示します。"
    ),
    "Only what changed after this time, in unix seconds.": "この時刻（unix秒）より後に更新されたもののみ。",
    "Where the page before this one ended: its next_cursor.": "前のページの next_cursor。",
    "Only runs of this flow.yaml.": "このflow.yamlのrunのみ。",
    "Follow a run as it changes.": "runの変化を監視します。",
    "Do not repeat what did not change after this time, in unix seconds.": (
        "この時刻（unix秒）より後に変化したものだけを表示します。"
    ),
    "Stop after so many seconds.": "この秒数で終了します。",
    "Stop after so many events.": "この件数のイベントで終了します。",
    "Fail (exit code 1) if the run has not ended when the watch does.": (
        "監視の終了時にrunが終了していなければ失敗（終了コード1）とします。"
    ),
    "live: a picture that is drawn anew; status: one line for each change; json: one event a line. Default: "
    "live in a terminal, json anywhere else.": (
        "live: 画面を更新して表示、status: 変化ごとに1行、json: イベントごとに1行。"
        "既定: 端末ではlive、それ以外ではjson。"
    ),
    "The same as --output json.": "--output json と同じです。",
    "Cancel a run.": "runを取り消します。",
    "Why; it is kept with the run.": "理由。runに記録されます。",
    "Return when the run has ended.": "runの終了まで待ちます。",
    "With --wait: fail after so many seconds.": "--wait と併用: この秒数を過ぎたら失敗とします。",
    # The fleet
    "Print the workers.": "workerの一覧を表示します。",
    "active: those that are alive; all: those that were, too.": (
        "active: 稼働中のもの、all: 停止したものも含む。"
    ),
    "Only these: RUNNING, IDLE, STOPPED_GRACEFUL or DISCONNECTED.": (
        "状態で絞り込みます: RUNNING、IDLE、STOPPED_GRACEFUL、DISCONNECTED。"
    ),
    "Hidden ones, too.": "非表示のworkerも含めます。",
    "At most so many (up to 500).": "件数の上限（最大500）。",
    "Leave a worker out of lists.": "workerを一覧で非表示にします。",
    "The worker.": "worker。",
    "Show a hidden worker again.": "非表示のworkerを再表示します。",
    "Print the server's figures, as Prometheus reads them.": (
        "サーバーのメトリクスをPrometheus形式で表示します。"
    ),
    # Wheels
    "Print the registered wheels.": "登録済みのwheelの一覧を表示します。",
    "Print who registered and removed what, newest first.": "登録と削除の履歴を新しい順に表示します。",
    "Only of this wheel.": "このwheelのみ。",
    "Only uploads, or only deletions.": "登録のみ、または削除のみ。",
    "Check a wheel and register it for workers.": "wheelを検査し、worker向けに登録します。",
    "The file, e.g. dist/my_flows-1.0-py3-none-any.whl.": (
        "ファイル。例: dist/my_flows-1.0-py3-none-any.whl。"
    ),
    "For workers with one of these tags, e.g. cpu,linux; none: for all.": (
        "対象のworkerのtag。例: cpu,linux。指定しなければすべてのworkerが対象です。"
    ),
    "Kept for older scripts: the version decides what can be registered.": (
        "古いスクリプトとの互換用です。登録の可否はバージョンで決まります。"
    ),
    "Remove a wheel: workers drop it at their next sync.": (
        "wheelを削除します。workerは次回の同期で取り除きます。"
    ),
    "The wheel, e.g. my_flows-1.0-py3-none-any.whl.": "wheel。例: my_flows-1.0-py3-none-any.whl。",
    # Executions and graphs
    "Print what waits for a person, oldest first.": "人の対応を待っているものを古い順に表示します。",
    "next_cursor of the page before.": "前のページの next_cursor。",
    "Let a waiting node go on.": "待機中のnodeを再開します。",
    "The execution.": "execution。",
    "The node that waits.": "待機中のnode。",
    "What it goes on with, as JSON; the output of a wait node.": (
        "再開時に渡す値（JSON）。waitのnodeではその出力になります。"
    ),
    "The node's wait_key, if it has one.": "nodeの wait_key（ある場合）。",
    "Register graphs and look at them.": "graphを登録・参照します。",
    "Register a graph: its next version, or the same one if nothing changed.": (
        "graphを登録します。次のバージョンになり、変更がなければ同じバージョンのままです。"
    ),
    "The definition, YAML or (called *.json) JSON.": "定義ファイル（YAML、または *.json のJSON）。",
    "The graph's id. Default: the id in the file, else the file's name without its ending.": (
        "graphのid。既定: ファイル内のid、なければ拡張子を除いたファイル名。"
    ),
    "Print a graph.": "graphを表示します。",
    "The graph's id.": "graphのid。",
    "An older version. Default: the newest.": "以前のバージョン。既定: 最新。",
    "Print the newest version of each graph.": "各graphの最新バージョンの一覧を表示します。",
    "Start executions of graphs, follow and command them.": ("graphのexecutionを開始・監視・操作します。"),
    "Start an execution of a graph.": "graphのexecutionを開始します。",
    "The graph.": "graph。",
    "The input, from a file (JSON or YAML).": "入力のファイル（JSON または YAML）。",
    "The input, as JSON.": "入力（JSON）。",
    "A single value of the input, key=value. What is given last wins.": (
        "入力の値1つ（key=value）。最後の指定が有効です。"
    ),
    "An id of your own. Default: a new one.": "任意のid。既定: 新しいid。",
    "An older version of the graph. Default: the newest.": "graphの以前のバージョン。既定: 最新。",
    "Only create it; start it later with: executions command ID StartExecution": (
        "作成のみ行います。後で開始するには: executions command ID StartExecution"
    ),
    "Follow it to its end; exit code 1 if it did not complete.": (
        "終了まで監視します。正常終了でなければ終了コードは1です。"
    ),
    "With the same key it is created only once, however often this is called.": (
        "同じkeyでは、何度実行しても1回だけ作成されます。"
    ),
    "Print the state of an execution.": "executionの状態を表示します。",
    "As it was after this event.": "このイベントの直後の状態。",
    "Print executions, newest first.": "executionの一覧を新しい順に表示します。",
    "Only these.": "この状態のもののみ。",
    "Of this graph only.": "このgraphのもののみ。",
    "Those that were archived, instead of the others.": "アーカイブ済みのもののみ。",
    "Print the log of an execution.": "executionのイベントログを表示します。",
    "Only events behind this sequence.": "この番号より後のイベントのみ。",
    "At most so many (up to 1000).": "件数の上限（最大1000）。",
    "Follow an execution to its end.": "executionを終了まで監視します。",
    "json: one event a line; status: a short line for each.": ("json: イベントごとに1行、status: 短い1行。"),
    "Cancel an execution. Once that was accepted, nothing else can be its end.": (
        "executionを取り消します。受理後は必ず取消で終了します。"
    ),
    "Why; it is kept with the execution.": "理由。executionに記録されます。",
    "Take an execution that has ended out of the default list.": (
        "終了したexecutionを既定の一覧から外します。"
    ),
    "Why; it is kept in the log.": "理由。ログに記録されます。",
    "Run it again, as a new execution of the same graph version and input.": (
        "同じバージョンのgraphと入力で、新しいexecutionとして再実行します。"
    ),
    "failed: take over the outputs of what had succeeded.": "failed: 成功済みのnodeの出力を引き継ぎます。",
    "With the same key it is created only once.": "同じkeyでは1回だけ作成されます。",
    "Send any command, such as StartExecution, StartNode, SucceedNode or FailNode.": (
        "任意のコマンド（StartExecution、StartNode、SucceedNode、FailNode など）を送ります。"
    ),
    "The command.": "コマンド。",
    "One of its fields, key=value: --field node_id=book --field worker_id=me": (
        "項目1つ（key=value）: --field node_id=book --field worker_id=me"
    ),
    "All of them, as JSON.": "全項目（JSON）。",
    "With the same key it has an effect only once.": "同じkeyでは1回だけ効果があります。",
    # Workflow events
    "Send workflow events, and look at what became of them.": (
        "ワークフローイベントを送信し、結果を参照します。"
    ),
    "Send an event, and print what it started or resumed.": (
        "イベントを送信し、開始または再開したものを表示します。"
    ),
    "The template to start.": "開始するtemplate。",
    "Or the action that the template begins with.": "または、templateの最初のaction。",
    "Idempotency key: the same key again starts nothing.": "冪等キー。同じキーでは二度開始しません。",
    "The year that the run is about.": "対象の年。",
    "The month that the run is about.": "対象の月。",
    'A JSON object for the flow, which finds it as params["event"].': (
        'flowに渡すJSON object。flowでは params["event"] で参照します。'
    ),
    "Who sends it.": "送信元。",
    "For people.": "備考。",
    "The data from a file, JSON or YAML.": "データのファイル（JSON または YAML）。",
    "With --node-id: no template is started, that node of that execution is resumed with the data.": (
        "--node-id と併用: templateは開始せず、そのexecutionのnodeをデータつきで再開します。"
    ),
    "The node that waits, or is to wait.": "待機中の、または待機する予定のnode。",
    "Resume the node that waits with this key.": "このキーで待機しているnodeを再開します。",
    "The token that the server wants, if it wants one (also: AX_WORKFLOW_EVENT_TOKEN).": (
        "サーバーが要求するトークン（環境変数: AX_WORKFLOW_EVENT_TOKEN）。"
    ),
    "Print what the events of a month came to.": "月ごとのイベントの集計を表示します。",
    "The month: YYYY-MM.": "月: YYYY-MM。",
    "So many of the latest (up to 200).": "表示する最新の件数（最大200）。",
    "Print the events that are tried again.": "再試行中のイベントを表示します。",
    "Try the queued events again now.": "キューにあるイベントを今すぐ再試行します。",
    "At most so many (up to 50).": "件数の上限（最大50）。",
    "Also those whose time has not come.": "再試行の時刻になっていないものも対象にします。",
    "Give a retry job all its attempts again, from now on.": "再試行ジョブの試行回数を最初に戻します。",
    "The job.": "ジョブ。",
    "Give a retry job up.": "再試行ジョブを破棄します。",
    "Send an event again.": "イベントを再送します。",
    "The event, as its answer and the summary name it.": "応答と集計に表示されるイベントのid。",
    "What events start.": "イベントで開始するtemplate。",
    "Print all templates.": "templateの一覧を表示します。",
    "Print a template.": "templateを表示します。",
    "The template.": "template。",
    "Make or change a template.": "templateを作成・変更します。",
    "Its definition, JSON or YAML.": "定義ファイル（JSON または YAML）。",
    "Only over the template with this updated_at.": "updated_at が一致する場合のみ変更します。",
    "Remove a template.": "templateを削除します。",
    "Start a template by hand.": "templateを手動で開始します。",
    "What templates may do.": "templateで使えるaction。",
    "Print all actions.": "actionの一覧を表示します。",
    "Allow an action: a flow, or a registered graph.": "actionを許可します: flow、または登録済みのgraph。",
    "The action, as the steps of templates name it.": "templateのstepで指定するactionの名前。",
    "The flow it runs.": "実行するflow。",
    "Or the graph.": "またはgraph。",
    "The workers that run it.": "実行するworkerのtag。",
    "A JSON object that every run of it gets.": "すべてのrunに渡すJSON object。",
    "While a run of it is active, the next event waits.": ("実行中のrunがある間、次のイベントを待たせます。"),
    "Forbid an action.": "actionを禁止します。",
    "The action.": "action。",
    # pyoco-server-admin
    "Administer a pyoco-server, through its NATS.": "pyoco-serverをNATS経由で管理します。",
    "Keys for clients of a gateway with PYOCO_HTTP_AUTH_MODE=api_key.": (
        "PYOCO_HTTP_AUTH_MODE=api_key のgatewayで使うAPI keyの管理。"
    ),
    "Issue a key and print it. This is the only time it is shown.": (
        "API keyを発行して表示します。表示されるのはこの1回だけです。"
    ),
    "Whom the key's runs belong to: [A-Za-z0-9_-]{1,64}.": (
        "このkeyのrunが属するtenant: [A-Za-z0-9_-]{1,64}。"
    ),
    "Print all keys, revoked ones too.": "すべてのAPI keyを、失効したものも含めて表示します。",
    "Refuse a key from now on. Gateways follow within a second.": (
        "API keyを失効させます。gatewayには1秒以内に反映されます。"
    ),
    "The key, by its id: what stands between `pyoco_` and the dot.": (
        "API keyのid: `pyoco_` とドットの間の部分。"
    ),
    "Workflow events.": "ワークフローイベント。",
    "Write receipts.json, retry_jobs.json and notification_settings.json.": (
        "receipts.json、retry_jobs.json、notification_settings.json を書き出します。"
    ),
    "Where to; it is made if it is not there. The address of the webhook is masked.": (
        "書き出し先のディレクトリ。なければ作成します。webhookのアドレスは伏せられます。"
    ),
    "Save everything that NATS holds for pyoco-server, while it runs.": (
        "NATSにあるpyoco-serverのデータを、稼働中のまますべて保存します。"
    ),
    "Where to; a new one, or an empty one.": "保存先のディレクトリ。新規、または空のもの。",
    "Bring a backup back, into a NATS that has nothing of it yet.": (
        "バックアップを、まだデータのないNATSに復元します。"
    ),
    "What `backup` has written.": "`backup` が書き出したディレクトリ。",
}
