//! What this crate uses of the shard, in one place.

pub(crate) use pelton_shard::broker::flow::{Account, Grant, Granter};
pub(crate) use pelton_shard::broker::storage::{Block, EntryMeta};
pub(crate) use pelton_shard::broker::{
    ConsumerId, MESSAGES_PER_ENTRY_MAX, ProducerId, Refusal, Reply, Request, RequestError, Run,
    TopicId,
};
pub(crate) use pelton_shard::nanos;
pub(crate) use pelton_shard::port::{
    Answer, CloseReason, ConsumerSignal, Control, Data, ForwardError as ShardForwardError,
    ForwardTo, Handler, HandlerDelivery as ShardDelivery, NoReply, Ports, ProducerSignal,
    ProducerState, Publish, PushError, RECEIPTS_PER_PAGE, ReceiptPage, ReceiptState, ReplyFrom,
    ShardHandle, ShardStats, on_shard_thread, reply,
};
pub(crate) use pelton_shard::rings::{Receiver, SlotSender, slots, spsc};
