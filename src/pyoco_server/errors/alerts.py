"""Errors of alerts, channels and deliveries."""

from http import HTTPStatus as Status

from pyoco_server.errors.entry import ErrorEntry, PyocoServerError


class AlertNotFound(PyocoServerError):
    entry = ErrorEntry(74, "alert not found", "アラートが見つかりません", "Alert not found", Status.NOT_FOUND)


class ChannelNotFound(PyocoServerError):
    entry = ErrorEntry(
        75, "channel not found", "通知チャネルが見つかりません", "Channel not found", Status.NOT_FOUND
    )


class ChannelInUse(PyocoServerError):
    entry = ErrorEntry(
        76, "channel in use", "通知チャネルは使用中です", "The channel is in use", Status.CONFLICT
    )


class DeliveryNotFound(PyocoServerError):
    entry = ErrorEntry(
        77, "delivery not found", "通知の配信記録が見つかりません", "Delivery not found", Status.NOT_FOUND
    )


class TargetRefused(PyocoServerError):
    """A private network, no TLS, or not a URL."""

    entry = ErrorEntry(
        78,
        "target refused",
        "この宛先には送信できません",
        "Messages may not be sent to this target",
        Status.UNPROCESSABLE_ENTITY,
    )


class DeliveryFailed(PyocoServerError):
    entry = ErrorEntry(
        79, "delivery failed", "通知を配信できませんでした", "A message could not be delivered"
    )
