"""ListTransactions (66), versions 0 to 1: the transactional ids that this broker coordinates.

    v1 only transactions that have run for a time (KIP-994)

States that are not known are named in the answer and match nothing. Version 2 has a pattern for ids
(KIP-1152), which Python's expressions could be made to compute for ever; it is not served.
"""

from __future__ import annotations

from kafka.protocol.admin import ListTransactionsRequest, ListTransactionsResponse

from broker.api.context import Api, RequestContext
from common.clock import wall_ms
from coordinator.transaction_states import Transaction, TransactionState

_STATES = frozenset(state.value for state in TransactionState)


async def list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
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
            for one in ctx.broker.transactions.all()
            if is_wanted(one)
        ],
    )


API = Api(
    ListTransactionsRequest, ListTransactionsResponse, versions=(0, 1), handler=list_transactions
)
