"""The catalogue of errors equals the contract's: ids, texts and HTTP answers."""

from collections.abc import Iterator

from pyoco_server import errors
from pyoco_server.errors import ErrorEntry, PyocoServerError
from support.tables import every_row

# Number, text of the contract, HTTP status (None: only logs and the command line show it).
CONTRACT: list[tuple[int, str, int | None]] = [
    (1, "稼働確認に失敗しました", None),
    (2, "リクエストが不正です", 422),
    (3, "NATSが利用できません", 503),
    (4, "孤児runが残っている可能性があります（best-effort cleanup失敗）", None),
    (5, "runが見つかりません", 404),
    (6, "flowが見つかりません", None),
    (7, "実行に失敗しました", None),
    (8, "terminal状態の記録に失敗しました", None),
    (9, "in_progress ACK の送信に失敗しました", None),
    (10, "スナップショットが大きすぎます", None),
    (11, "DLQへのpublishに失敗しました（best-effort）", None),
    (12, "不正なジョブを受信しました", None),
    (13, "ログ出力に失敗しました（best-effort）", None),
    (14, "API key が必要です", 401),
    (15, "API key が無効です", 403),
    (16, "ワークフローファイルが大きすぎます", 413),
    (17, "一覧クエリが不正です", 422),
    (18, "CLI引数が不正です（入力形式を確認してください）", None),
    (19, "workersリクエストが不正です", 422),
    (20, "workerが見つかりません", 404),
    (21, "cancel要求がタイムアウトしました（best-effort）", None),
    (22, "wheelバージョンが不正です（同一/過去バージョンは不可）", 409),
    (23, "wheelが見つかりません", 404),
    (24, "wheel同期に失敗しました（best-effort）", None),
    (31, "executionが見つかりません", 404),
    (32, "nodeが見つかりません", 404),
    (33, "コマンドは受理されませんでした（状態を確認してください）", 409),
    (34, "graphが見つかりません", 404),
    (41, "ワークフローイベントの認証に失敗しました", 401),
    (42, "ワークフローの定義が見つかりません", 404),
    (43, "ワークフローの状態と競合しました", 409),
    (44, "ワークフローイベントの処理に失敗しました", 500),
    (45, "通知の送信に失敗しました（best-effort）", None),
    (46, "監査ログの書き込みに失敗しました（best-effort）", None),
    (47, "この機能には新しい NATS サーバーが必要です", 501),
    (48, "スケジュールが見つかりません", 404),
    (51, "runを再実行できません", 409),
    (52, "リミットが見つかりません", 404),
    (53, "リミットに達しています（しばらくしてから再送してください）", 429),
    (60, "API key のスコープが不足しています", 403),
    (61, "API key が見つかりません", 404),
    (70, "デッドレターが見つかりません", 404),
    (71, "デッドレターからrunを再投入できません", 409),
    (72, "一括操作が見つかりません", 404),
    (73, "現在は削除できません", 409),
    (74, "アラートが見つかりません", 404),
    (75, "通知チャネルが見つかりません", 404),
    (76, "通知チャネルは使用中です", 409),
    (77, "通知の配信記録が見つかりません", 404),
    (78, "この宛先には送信できません", 422),
    (79, "通知を配信できませんでした", None),
    (80, "シークレットが見つかりません", 404),
    (81, "変数が見つかりません", 404),
    (82, "シークレットの暗号鍵（PYOCO_SECRETS_KEY）が設定されていません", 503),
    (83, "シークレットまたは変数を解決できません", 422),
    (88, "値が見つかりません", 404),
    (90, "アーティファクトが見つかりません", 404),
    (91, "サーバー内部で予期しないエラーが発生しました", 500),
]


def _all_kinds(base: type[PyocoServerError] = PyocoServerError) -> Iterator[type[PyocoServerError]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith(errors.__name__):
            yield kind
        yield from _all_kinds(kind)


def _catalogue() -> dict[int, ErrorEntry]:
    return {kind.entry.number: kind.entry for kind in _all_kinds() if "entry" in vars(kind)}


def test_there_is_one_row_per_id_of_the_contract() -> None:
    rows = [kind.entry.number for kind in _all_kinds() if "entry" in vars(kind)]
    assert sorted(rows) == [number for number, *_ in CONTRACT]


@every_row(("number", "japanese", "status"), CONTRACT)
def test_a_row_equals_the_contract(number: int, japanese: str, status: int | None) -> None:
    entry = _catalogue()[number]
    assert (entry.err_id, entry.msg_id) == (f"ERR-PYOCO-{number:04d}", f"MSG-PYOCO-{number:04d}")
    assert entry.status == status
    assert entry.message("ja") == japanese
    assert entry.message("en") == entry.en
    assert entry.en.isascii()
    assert entry.detail.isascii()


def test_english_texts_are_told_apart() -> None:
    assert len({entry.en for entry in _catalogue().values()}) == len(CONTRACT)


def test_an_error_without_words_says_its_standard_detail() -> None:
    assert errors.RunNotFound().detail == "run not found"
    assert errors.RunNotFound("another text").detail == "another text"


def test_an_error_without_a_status_of_its_own_is_a_failure_of_ours() -> None:
    assert errors.SnapshotTooLarge().status == 500


def test_a_request_that_is_too_large_is_an_invalid_one_with_another_status() -> None:
    error = errors.RequestTooLarge()
    assert (error.status, error.ids["err_id"]) == (413, "ERR-PYOCO-0002")
