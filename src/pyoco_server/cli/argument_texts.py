"""What is said about arguments that cannot be used."""

from pyoco_server.cli.language import Text

MISSING = Text(en="{name} is missing", ja="{name} が指定されていません")
VALUE_MISSING = Text(en="{name} needs a value", ja="{name} には値が必要です")
MISTYPED = Text(
    en="{given} is not an option; did you mean {meant}?",
    ja="{given} というオプションはありません。{meant} の間違いではありませんか",
)
UNKNOWN_OPTION = Text(
    en="{option} is not an option{meant}", ja="{option} というオプションはありません{meant}"
)
UNKNOWN_COMMAND = Text(
    en="{command} is not a command{meant}", ja="{command} というコマンドはありません{meant}"
)
DID_YOU_MEAN = Text(en="; did you mean {name}?", ja="。{name} の間違いではありませんか")
NOT_ONE_OF = Text(
    en="{name} {given}: must be one of {choices}",
    ja="{name} {given}: 次のいずれかを指定してください: {choices}",
)
BAD_VALUE = Text(en="{name} {given}: must be {expected}", ja="{name} {given}: {expected}を指定してください")
WHOLE_NUMBER = Text(en="a whole number", ja="整数")
NUMBER = Text(en="a number", ja="数値")
OTHER_VALUE = Text(en="a value of another form", ja="正しい形式の値")
REPEATED = Text(en="{option} is given more than once", ja="{option} が2回以上指定されています")
UNUSED = Text(en="cannot be used here: {tokens}", ja="ここでは使えない引数です: {tokens}")
EXAMPLE = Text(en="Example:  {command}", ja="例:  {command}")
USAGE = Text(en="Usage:    {command} --help", ja="使い方:  {command} --help")
