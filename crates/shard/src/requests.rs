//! Control requests that the core has and has not answered yet.

use pelton_broker::storage::Durability;
use pelton_broker::{ConsumerId, ProducerId, RequestId};
use pelton_metrics::ShardMetrics;

use crate::port::{Answer, ReplyTo, ShardStats};

/// By request id, which is an index: used again after the answer.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pending: Vec<Option<Pending>>,
    free: Vec<u32>,
}

/// Who waits, and what the shard does when the answer is there.
#[derive(Debug)]
pub(crate) enum Pending {
    Request {
        reply: ReplyTo<Answer>,
        then: Then,
    },
    Stats {
        spare: Box<ShardMetrics>,
        reply: ReplyTo<ShardStats>,
    },
    /// A dead letter of that shard, under its token there.
    Letter {
        from: u32,
        token: u64,
    },
    /// The shard itself asked and wants no answer.
    Own,
}

/// What an answer means for the ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    Nothing,
    TopicOpen(Durability),
    ProducerOpen { slot: u32 },
    ProducerClosed(ProducerId),
    ConsumerOpen { slot: u32 },
    ConsumerClosed(ConsumerId),
}

impl Requests {
    pub(crate) fn insert(&mut self, pending: Pending) -> RequestId {
        let index = match self.free.pop() {
            Some(index) => {
                self.pending[index as usize] = Some(pending);
                index
            }
            None => {
                self.pending.push(Some(pending));
                u32::try_from(self.pending.len() - 1)
                    .expect("bounded by the control lane and the letters of each shard")
            }
        };
        RequestId(u64::from(index))
    }

    pub(crate) fn take(&mut self, id: RequestId) -> Option<Pending> {
        let index = u32::try_from(id.0).ok()?;
        let pending = self.pending.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_one_request_until_its_answer() {
        let mut requests = Requests::default();
        let (first, second) = (requests.insert(Pending::Own), requests.insert(Pending::Own));
        assert_ne!(first, second);
        assert!(requests.take(first).is_some());
        assert!(requests.take(first).is_none());
        assert_eq!(requests.insert(Pending::Own), first);
        assert!(requests.take(RequestId(99)).is_none());
    }
}
