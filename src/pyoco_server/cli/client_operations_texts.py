"""Texts of the commands for dead letters, bulk operations, deletes and secrets."""

from pyoco_server.cli import Text

NO_LETTERS = Text(en="no dead letters", ja="デッドレターはありません")
NO_OPERATIONS = Text(en="no bulk operations", ja="一括操作はありません")
NO_ALERTS = Text(en="no alerts", ja="アラートはありません")
NO_CHANNELS = Text(en="no channels", ja="通知チャネルはありません")
NO_DELIVERIES = Text(en="no deliveries", ja="配信の記録はありません")
NO_KINDS = Text(en="no on: what it is about, e.g. [run.failed]", ja="on がありません（例: [run.failed]）")
NO_TYPE = Text(en="no type, e.g. webhook", ja="type がありません（例: webhook）")
NO_ITEMS = Text(en="nothing matches", ja="該当するものはありません")
NO_ENDED_RUNS = Text(en="no runs ended in this time", ja="この期間に終了したrunはありません")
WHICH_ITEMS = Text(
    en="give either ids, or filters such as --flow, or --all",
    ja="ID、--flow などの条件、--all のいずれか1つを指定してください",
)

OPERATIONS_HELP_JA = {
    (
        "Keep checking until Ctrl-C, and print problems as they appear and disappear; one object per line with --json."
    ): "Ctrl-C まで確認を続け、問題の発生と解消を表示します。--json では1行に1オブジェクト。",
    "With --live: seconds between two checks.": "--live の確認間隔（秒）。",
    "Port for /health, /ready and /metrics (also: PYOCO_WORKER_HTTP_PORT). Default: none.": (
        "/health、/ready、/metrics のポート（環境変数: PYOCO_WORKER_HTTP_PORT）。既定: なし。"
    ),
    "Listen address for them (also: PYOCO_WORKER_HTTP_HOST). Default: 127.0.0.1": (
        "その待ち受けアドレス（環境変数: PYOCO_WORKER_HTTP_HOST）。既定: 127.0.0.1"
    ),
    "Send messages when something happens.": "何かが起きたときに通知を送ります。",
    "Where the messages of alerts go: webhooks, chats, e-mail.": (
        "アラートの送り先（webhook、チャット、メール）を管理します。"
    ),
    "What became of the messages of alerts.": "アラートの配信状況を表示します。",
    "Alert name.": "アラートの名前。",
    "Channel name.": "通知チャネルの名前。",
    "Id of the delivery.": "配信のID。",
    "Create or change an alert from a file.": "ファイルからアラートを作成・変更します。",
    "Alert definition, YAML or JSON.": "アラートの定義（YAMLまたはJSON）。",
    "Alert name. Default: the name in the file, else the file name without extension.": (
        "アラートの名前。既定はファイル内の名前、なければ拡張子を除いたファイル名。"
    ),
    "List alerts, newest first.": "アラートを新しい順に一覧表示します。",
    "Print an alert.": "アラートを表示します。",
    "Delete an alert. Messages on their way are still delivered.": (
        "アラートを削除します。送信中の通知はそのまま配信されます。"
    ),
    "Create or change a channel from a file. A generated secret is printed, once.": (
        "ファイルから通知チャネルを作成・変更します。生成されたシークレットは一度だけ表示されます。"
    ),
    "Channel definition, YAML or JSON.": "通知チャネルの定義（YAMLまたはJSON）。",
    "Channel name. Default: the name in the file, else the file name without extension.": (
        "通知チャネルの名前。既定はファイル内の名前、なければ拡張子を除いたファイル名。"
    ),
    "List channels, newest first.": "通知チャネルを新しい順に一覧表示します。",
    "Print a channel, without its secrets.": "通知チャネルを表示します（シークレットは除く）。",
    "Delete a channel that no alert uses.": "どのアラートも使っていない通知チャネルを削除します。",
    "List deliveries, newest first.": "配信を新しい順に一覧表示します。",
    "Filter by alert.": "アラートで絞り込みます。",
    "Filter by channel.": "通知チャネルで絞り込みます。",
    "Print a delivery, with what is sent.": "配信を、送信内容とともに表示します。",
    "Send a delivery again, with the same id and body.": "同じIDと本文でもう一度送信します。",
    "Inspect jobs that no worker could finish, and run them again.": (
        "どのworkerも完了できなかったジョブを確認し、再実行します。"
    ),
    "Cancel, retry, delete or redrive many runs at once.": (
        "多数のrunをまとめてキャンセル・再実行・削除・再投入します。"
    ),
    "Id of the dead letter.": "デッドレターのID。",
    "Id of the operation.": "一括操作のID。",
    "List dead letters, newest first.": "デッドレターを新しい順に一覧表示します。",
    "Filter by reason.": "理由で絞り込みます。",
    "Filter by tag.": "タグで絞り込みます。",
    "Filter by flow name.": "flow名で絞り込みます。",
    "Written then or later, e.g. 2026-12-01T00:00+09:00": "この時刻以降のもの。例: 2026-12-01T00:00+09:00",
    "Print a dead letter.": "デッドレターを表示します。",
    "Run the run of a dead letter again. A second time prints the same run.": (
        "デッドレターのrunを再実行します。2回目以降は同じrunを表示します。"
    ),
    "Remove a dead letter. Its run is kept.": "デッドレターを削除します。runは残ります。",
    "Start an operation on the runs that match now, or on those with these ids.": (
        "現時点で条件に合うrun、または指定したIDのrunに対する一括操作を開始します。"
    ),
    "What to do. redrive: dead letters instead of runs.": (
        "操作の種類。redrive の対象はrunではなくデッドレターです。"
    ),
    "Run ids; for redrive, ids of dead letters.": "runのID。redrive ではデッドレターのID。",
    "Runs with this status.": "この状態のrun。",
    "Runs or dead letters of this flow.": "このflowのrunまたはデッドレター。",
    "Runs or dead letters with this tag.": "このタグのrunまたはデッドレター。",
    "Runs that changed after this time, e.g. 2026-12-01T00:00+09:00": (
        "この時刻より後に変化したrun。例: 2026-12-01T00:00+09:00"
    ),
    "Runs that changed before this time.": "この時刻より前に変化したrun。",
    "Dead letters with this reason.": "この理由のデッドレター。",
    "Dead letters written then or later.": "この時刻以降のデッドレター。",
    "All runs or dead letters, if no filter is given.": "条件を指定せず、すべてのrunまたはデッドレターを対象にします。",
    "Only print how many they are, and the first 20.": "件数と先頭20件の表示だけを行います。",
    "Maximum number of items per second.": "1秒あたりの最大件数。",
    "Wait for the end. Exit code 1 if an item failed.": (
        "終了まで待ちます。失敗した項目があれば終了コードは1です。"
    ),
    "Print an operation: what is done, what failed, what is left.": (
        "一括操作の完了・失敗・残りの件数を表示します。"
    ),
    "List operations, newest first.": "一括操作を新しい順に一覧表示します。",
    "Cancel an operation. What it has done stays done.": (
        "一括操作を中止します。処理済みの項目は元に戻りません。"
    ),
    "Watch an operation until it ends.": "一括操作を終了まで監視します。",
    "json: the operation in one line per change; status: one short line per change.": (
        "json: 変化ごとに1行のJSON。status: 変化ごとに短い1行。"
    ),
    "Count the runs that ended, per minute or hour, with quantiles of their waits and durations.": (
        "終了したrunを分または時間ごとに集計し、待ち時間と実行時間の分位数とともに表示します。"
    ),
    "What the runs are counted by.": "集計の単位。",
    "minute: of the last day; hour: of the last 90 days.": "minute: 直近1日。hour: 直近90日。",
    "Ended then or later, e.g. 2026-12-01T00:00+09:00. Default: the last hour, or day.": (
        "この時刻以降に終了したrun。例: 2026-12-01T00:00+09:00。既定は直近1時間（hour では1日）。"
    ),
    "Ended before this time. Default: now.": "この時刻より前に終了したrun。既定は現在。",
    "Run id.": "runのID。",
    "Worker id.": "workerのID。",
    "Delete an ended run and its log.": "終了したrunとそのログを削除します。",
    "Delete the record of a worker that is gone.": "停止したworkerの記録を削除します。",
    "Delete an archived execution. Its id cannot be used again.": (
        "アーカイブ済みのexecutionを削除します。同じIDは再利用できません。"
    ),
}

NO_SECRETS = Text(en="no secrets", ja="シークレットはありません")
NO_VARIABLES = Text(en="no variables", ja="変数はありません")

SECRETS_HELP_JA = {
    "Keep secrets that params name as ${secrets.NAME}.": "パラメーターから ${secrets.NAME} で参照するシークレットを管理します。",
    "Keep values that params name as ${vars.NAME}.": "パラメーターから ${vars.NAME} で参照する値を管理します。",
    "Name: [A-Za-z0-9_-]{1,64}.": "名前: [A-Za-z0-9_-]{1,64}。",
    "Set a secret. Its value is read from the standard input, and never shown again.": (
        "シークレットを設定します。値は標準入力から読み取り、以後表示されません。"
    ),
    "File with the value, instead of the standard input. One newline at its end is left out.": (
        "標準入力の代わりに値を読み取るファイル。末尾の改行は1つだけ取り除きます。"
    ),
    "List secrets, newest first, without their values.": "シークレットを新しい順に一覧表示します（値は表示しません）。",
    "Print a secret without its value.": "シークレットを表示します（値は表示しません）。",
    "Delete a secret. Runs that name it and start later fail.": (
        "シークレットを削除します。参照するrunは、以後開始時に失敗します。"
    ),
    "Set a variable. Without --value or --file, its value is read from the standard input.": (
        "変数を設定します。--value も --file もない場合、値は標準入力から読み取ります。"
    ),
    "The value.": "値。",
    "File with the value. One newline at its end is left out.": (
        "値を読み取るファイル。末尾の改行は1つだけ取り除きます。"
    ),
    "The value is JSON, not text.": "値を文字列ではなくJSONとして扱います。",
    "List variables, newest first.": "変数を新しい順に一覧表示します。",
    "Print a variable.": "変数を表示します。",
    "Delete a variable. Runs that name it and start later fail.": (
        "変数を削除します。参照するrunは、以後開始時に失敗します。"
    ),
    "Manage the keys that seal secrets.": "シークレットの暗号鍵を管理します。",
    "Make a new key for PYOCO_SECRETS_KEY.": "PYOCO_SECRETS_KEY 用の新しい鍵を作成します。",
    "New file for the key, which only its owner can read. Default: print the key.": "鍵を書き込む新しいファイル（所有者だけが読めます）。省略時は鍵を表示します。",
    "Seal all secrets and channels with the first key of PYOCO_SECRETS_KEY.": (
        "すべてのシークレットと通知チャネルを PYOCO_SECRETS_KEY の先頭の鍵で暗号化し直します。"
    ),
}
