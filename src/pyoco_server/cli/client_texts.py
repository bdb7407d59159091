"""What `pyoco-client` says to people."""

from pyoco_server.cli.language import Text

# Wheels

NO_SUCH_WHEEL_FILE = Text(
    en="--wheel-file {path}: there is no such file; build one with: python -m build --wheel",
    ja="--wheel-file {path}: ファイルがありません。作成するには: python -m build --wheel",
)
BAD_WHEEL = Text(
    en="--wheel-file {path}: {reason}. Build it again with a standard tool: python -m build --wheel",
    ja="--wheel-file {path}: {reason}。標準のツールで作り直してください: python -m build --wheel",
)
WHEEL_FITS_NOWHERE = Text(
    en="--wheel-file {path}: no worker can install it. It is built for {built_for}{requires}; workers run CPython "
    "3.11 or newer on Linux or macOS. Build it with one of those, or, if it is Python only, as py3-none-any",
    ja="--wheel-file {path}: どのworkerにもインストールできません。対象は {built_for}{requires} ですが、workerは "
    "Linux/macOS の CPython 3.11 以降で動きます。その環境で作り直すか、Pythonだけのコードなら py3-none-any で作成してください",
)
WHEEL_REQUIRES = Text(en=", Requires-Python {wanted}", ja="、Requires-Python {wanted}")
WHEEL_FITS_SOME_PYTHONS = Text(
    en="warning: only workers on CPython {pythons} install this wheel; all others skip it "
    "(pyoco-client workers shows it under wheel_sync.skipped_incompatible)",
    ja="警告: このwheelをインストールするのは CPython {pythons} のworkerだけです。それ以外のworkerは読み飛ばします"
    "（pyoco-client workers の wheel_sync.skipped_incompatible に表示されます）",
)
WHEEL_FITS_SOME_PLATFORMS = Text(
    en="warning: only workers on CPython {pythons} and {platforms} install this wheel; all others skip it "
    "(pyoco-client workers shows it under wheel_sync.skipped_incompatible)",
    ja="警告: このwheelをインストールするのは CPython {pythons}、{platforms} のworkerだけです。それ以外のworkerは"
    "読み飛ばします（pyoco-client workers の wheel_sync.skipped_incompatible に表示されます）",
)
NO_TASKS_IN_WHEEL = Text(
    en="note: the wheel has no entry point group pyoco.tasks; its code can be named in a flow.yaml "
    "(tasks.*.callable), but brings no tasks by itself. To publish tasks, add to pyproject.toml: "
    '[project.entry-points."pyoco.tasks"]',
    ja="注意: このwheelには entry point グループ pyoco.tasks がありません。flow.yaml（tasks.*.callable）からは"
    "参照できますが、タスクは公開されません。公開するには pyproject.toml に追加してください: "
    '[project.entry-points."pyoco.tasks"]',
)
BAD_ENTRY_POINT = Text(
    en="--wheel-file {path}: entry point pyoco.tasks: {name} = {value!r} {reason}. "
    "Correct it in pyproject.toml and build again",
    ja="--wheel-file {path}: entry point pyoco.tasks: {name} = {value!r} {reason}。"
    "pyproject.toml を修正して作り直してください",
)
IS_NOT_MODULE_FUNCTION = Text(
    en="is not module or module:function", ja="は module または module:function の形式ではありません"
)
NAMES_NO_MODULE = Text(
    en="names the module {module}, which is not in the wheel",
    ja="のモジュール {module} はwheelに含まれていません",
)
