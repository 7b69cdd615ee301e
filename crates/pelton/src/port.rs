//! What this crate uses of the shard, in one place.

pub(crate) use pelton_shard::broker::flow::{Account, Grant, Granter};
pub(crate) use pelton_shard::broker::keys::key_hash;
pub(crate) use pelton_shard::broker::storage::{Block, EntryMeta};
pub(crate) use pelton_shard::broker::{
    AckSet, ConsumerId, KeyShared, MESSAGES_PER_ENTRY_MAX, Numbered, OpenProducer, OpenedProducer,
    Refusal, Reply, Request, RequestError, Run, Subscribe, TopicId,
};
pub(crate) use pelton_shard::nanos;
pub(crate) use pelton_shard::port::{
    AckPart, Answer, Arrival, CloseReason, ConsumerSignal, Control, Data,
    ForwardError as ShardForwardError, ForwardTo, Handler, HandlerDelivery as ShardDelivery,
    NoReply, Ports, ProducerSignal, ProducerState, Publish, PublishExtras, PushError,
    RECEIPTS_PER_PAGE, ReceiptPage, ReceiptState, ReplyFrom, ShardHandle, ShardStats,
    on_shard_thread, reply,
};
pub(crate) use pelton_shard::rings::{Receiver, SlotSender, slots, spsc};
