"""What `pyoco-server` says to people."""

from pyoco_server.cli.language import Text

# Ports

PORT_IN_USE = Text(
    en="cannot listen on {address}: it is used by {holder}. Stop that program, or choose another port, e.g. {option} {free}",
    ja="{address} で待ち受けできません。使用中のプログラム: {holder}。そのプログラムを止めるか、別のポートを指定してください。"
    "例: {option} {free}",
)
PORT_FORBIDDEN = Text(
    en="cannot listen on {address}: ports below 1024 are for root. Choose another one, e.g. {option} {free}",
    ja="{address} で待ち受けできません。1024未満のポートにはroot権限が必要です。別のポートを指定してください。例: {option} {free}",
)
CANNOT_LISTEN = Text(
    en="cannot listen on {address} ({reason}): give an address of this machine and a port from 1 to 65535",
    ja="{address} で待ち受けできません（{reason}）。このマシンのアドレスと、1から65535のポートを指定してください",
)
ANOTHER_PROGRAM = Text(en="another program", ja="別のプログラム")

# up

NATS_YOURS = Text(en="{url} (yours; none was started)", ja="{url}（既存のもの。起動していません）")
NATS_EMBEDDED = Text(
    en="started here at {url}, data in {directory} ({durability})",
    ja="ここで起動しました: {url}、データ {directory}（{durability}）",
)
NATS_BOOTSTRAPPED = Text(
    en="started by nats-bootstrap at {url}, monitoring on port {http_port},\n         data in {directory}",
    ja="nats-bootstrap で起動しました: {url}、監視ポート {http_port}、\n         データ {directory}",
)
HTTP_AT = Text(en="HTTP     {url}   (API: {url}/docs)", ja="HTTP     {url}   （API: {url}/docs）")
NO_WORKER_HERE = Text(
    en="Worker   none here; start one:\n         {command}",
    ja="Worker   なし。起動するには:\n         {command}",
)
WORKER_HERE = Text(en="Worker   on this machine, tag {tag}", ja="Worker   このマシンで起動、tag {tag}")
EVENTS_IMPORTED = Text(
    en="Events   {count} records imported from {path} ({left_out} left out: see the log)",
    ja="Events   {path} から {count} 件を取り込みました（除外 {left_out} 件。詳細はログを参照）",
)
CTRL_C_STOPS_IT = Text(en="Ctrl-C stops it.", ja="Ctrl-C で停止します。")

# up --with-nats-bootstrap

NO_NATS_BOOTSTRAP = Text(
    en="--with-nats-bootstrap: the program nats-bootstrap was not found. Install it (pip install nats-bootstrap), or leave the "
    "option out: pyoco-server brings its own NATS along",
    ja="--with-nats-bootstrap: nats-bootstrap が見つかりません。インストールする（pip install nats-bootstrap）か、この"
    "オプションを外してください。外した場合は付属のNATSを起動します",
)
BOOTSTRAP_NOT_STARTED = Text(
    en="--with-nats-bootstrap: nats-bootstrap did not start NATS at {url}: {reason}. Its output is in {log}",
    ja="--with-nats-bootstrap: nats-bootstrap が {url} でNATSを起動できませんでした: {reason}。出力は {log} にあります",
)
ONLY_WITH_BOOTSTRAP = Text(
    en="{option} is for --with-nats-bootstrap only; give both or none",
    ja="{option} は --with-nats-bootstrap と一緒に指定してください",
)
URL_IS_NOT_BOOTSTRAPS = Text(
    en="--with-nats-bootstrap starts a NATS at {url}, but the NATS url (--nats-url or PYOCO_NATS_URL) is {given}: leave one of "
    "them out, or choose --nats-client-port accordingly",
    ja="--with-nats-bootstrap は {url} でNATSを起動しますが、NATSのURL（--nats-url または PYOCO_NATS_URL）は {given} です。"
    "どちらかを外すか、--nats-client-port を合わせてください",
)
FLOWS_NOT_A_DIRECTORY = Text(
    en="--flows {path} is not a directory; example: --flows ./flows",
    ja="--flows {path} はディレクトリではありません。例: --flows ./flows",
)
FLOWS_OR_RESOLVER = Text(
    en="give --flow-resolver or --flows, not both",
    ja="--flow-resolver と --flows はどちらか一方だけ指定してください",
)

# init

NOT_A_DIRECTORY = Text(
    en="{path} is a file; name a directory, e.g. pyoco-server init my-project",
    ja="{path} はファイルです。ディレクトリを指定してください。例: pyoco-server init my-project",
)
DIRECTORY_NOT_EMPTY = Text(
    en="{path} is not empty ({names}): choose another directory, or add --force, which replaces files of the same name",
    ja="{path} は空ではありません（{names}）。別のディレクトリにするか、--force を付けてください（同名のファイルは置き換えます）",
)
CANNOT_WRITE = Text(
    en="{path} cannot be written ({reason}): choose a directory of yours",
    ja="{path} に書き込めません（{reason}）。書き込めるディレクトリを指定してください",
)
PROJECT_MADE = Text(en="{path}: {count} files", ja="{path} に {count} 個のファイルを作成しました")
PROJECT_NEXT = Text(
    en="Next:\n  cd {path}\n  python -m pytest\n  pyoco-server up --with-worker --flows flows\n"
    "and, in a second terminal:\n  pyoco-client submit --flow-name extract --wait",
    ja="次に:\n  cd {path}\n  python -m pytest\n  pyoco-server up --with-worker --flows flows\n"
    "別の端末で:\n  pyoco-client submit --flow-name extract --wait",
)

# pyoco-worker

FLOWS_NEEDED = Text(
    en="either --flow-resolver or --flows is needed: --flow-resolver my_package.flows:resolve   --flows ./flows",
    ja="--flow-resolver か --flows のどちらか一方が必要です: --flow-resolver my_package.flows:resolve   --flows ./flows",
)
BAD_CONCURRENCY = Text(
    en="--concurrency {given}: must be at least 1, e.g. --concurrency 4",
    ja="--concurrency {given}: 1以上を指定してください。例: --concurrency 4",
)
BAD_WORKER_NAMES = Text(
    en="{reason}; example: --worker-id node-1 --tags cpu,linux",
    ja="{reason}。例: --worker-id node-1 --tags cpu,linux",
)
WORKER_ID_IN_USE = Text(en="{reason}; example: --worker-id node-2", ja="{reason}。例: --worker-id node-2")

# demo

DEMO_STOPPED = Text(
    en="Everything is stopped again. `make up` does the same and stays.",
    ja="すべて停止しました。`make up` なら起動したままになります。",
)
TRY_IT = Text(en="Try it from another terminal:", ja="別の端末から試せます:")

# Failures

WHAT_IT_TAKES = Text(en="What it takes:  {command} --help", ja="使い方:  {command} --help")
BAD_SETTINGS = Text(en="The settings cannot be used:", ja="設定に誤りがあります:")
