"""ListTransactions (66), versions 0 to 2: the transactional ids that this broker coordinates.

    v1 only transactions that have run for a time (KIP-994)
    v2 only ids that a regular expression matches as a whole (KIP-1152)

States that are not known are named in the answer and match nothing.

Errors: INVALID_REGULAR_EXPRESSION; COORDINATOR_NOT_AVAILABLE (the ids cannot be read).
"""

from __future__ import annotations

from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse

from brokerhouse.broker.api.context import Api, RequestContext
from brokerhouse.common.clock import wall_ms
from brokerhouse.coordinator.transaction_states import Transaction, TransactionState
from brokerhouse.protocol.errors import KafkaError

_STATES = frozenset(state.value for state in TransactionState)


async def list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    pattern = request.transactional_id_pattern if ctx.version >= 2 else None
    coordinator = ctx.broker.transactions
    try:
        transactions = await coordinator.matching(pattern) if pattern else coordinator.all()
    except KafkaError as error:
        return ListTransactionsResponse(
            throttle_time_ms=0,
            error_code=error.code,
            unknown_state_filters=[],
            transaction_states=[],
        )
    longer_than_ms = request.duration_filter if ctx.version >= 1 else -1
    now_ms = wall_ms()

    def is_wanted(one: Transaction) -> bool:
        return (
            (not request.state_filters or one.state.value in request.state_filters)
            and (not request.producer_id_filters or one.producer_id in request.producer_id_filters)
            and (
                longer_than_ms < 0
                or (one.started_ms >= 0 and now_ms - one.started_ms > longer_than_ms)
            )
        )

    return ListTransactionsResponse(
        throttle_time_ms=0,
        error_code=0,
        unknown_state_filters=[one for one in request.state_filters if one not in _STATES],
        transaction_states=[
            ListTransactionsResponse.TransactionState(
                transactional_id=one.transactional_id,
                producer_id=one.producer_id,
                transaction_state=one.state.value,
            )
            for one in transactions
            if is_wanted(one)
        ],
    )


API = Api(
    ListTransactionsRequest, ListTransactionsResponse, versions=(0, 2), handler=list_transactions
)
