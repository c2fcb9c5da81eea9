"""UnregisterBroker (64), version 0: forgets a broker that is gone for good.

A broker is known while its session lasts, so one that is gone is forgotten without this request. A
broker that runs cannot be unregistered.

Errors: BROKER_ID_NOT_REGISTERED, INVALID_REQUEST (the broker runs).
"""

from __future__ import annotations

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.protocol.errors import BrokerIdNotRegistered, InvalidRequest
from brokerhouse.protocol.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


async def unregister_broker(
    ctx: RequestContext, request: UnregisterBrokerRequest
) -> UnregisterBrokerResponse:
    node_id = request.broker_id
    if any(broker.node_id == node_id for broker in ctx.broker.leadership.brokers()):
        raise InvalidRequest(
            f"Broker {node_id} is running. Stop it: it is forgotten when its session ends."
        )
    raise BrokerIdNotRegistered(f"There is no broker {node_id}.")


API = Api(
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    versions=(0, 0),
    handler=unregister_broker,
)
