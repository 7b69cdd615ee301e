//! Those who use the core: producers and consumers, as the handles of the API would.

use std::collections::BTreeMap;

use pelton_broker::flow::{Account, Grant, Granter};
use pelton_broker::{ConsumerId, ProducerId};

use crate::sub::Wish;

#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) topic: usize,
    pub(crate) slot: u32,
    pub(crate) id: Option<ProducerId>,
    pub(crate) open: bool,
    /// It was told that nothing more is taken.
    pub(crate) at_end: bool,
    pub(crate) next_sequence: u64,
    /// Sequences without an answer.
    pub(crate) owed: BTreeMap<u64, Owed>,
    /// The topic as it was made: another with the same name is not this producer's.
    pub(crate) life: u64,
}

/// What an answer is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owed {
    /// The entry in this place of its topic.
    Entry(usize),
    /// One that must not be stored: this is the highest sequence of its name.
    Repeats(u64),
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) name: String,
    pub(crate) priority: i32,
    pub(crate) topic: usize,
    pub(crate) sub: String,
    pub(crate) slot: u32,
    pub(crate) id: Option<ConsumerId>,
    /// The core has it.
    pub(crate) attached: bool,
    /// It knows that it is attached.
    pub(crate) told: bool,
    granter: Granter,
    /// It was told that nothing more comes.
    pub(crate) at_end: bool,
    /// The attachment that the last seek ended.
    pub(crate) ended: Option<ConsumerId>,
    pub(crate) granted: u64,
    pub(crate) delivered: u64,
    /// Every entry it was given, in order.
    pub(crate) saw: Vec<usize>,
}

impl Consumer {
    pub(crate) fn new(wish: &Wish, topic: usize, sub: String, slot: u32) -> (Consumer, Account) {
        let (granter, account) = Granter::pair();
        let consumer = Consumer {
            name: wish.name.clone(),
            priority: wish.priority,
            topic,
            sub,
            slot,
            id: None,
            attached: true,
            told: false,
            granter,
            at_end: false,
            ended: None,
            granted: 0,
            delivered: 0,
            saw: Vec::new(),
        };
        (consumer, account)
    }

    /// A seek ended its attachment, which goes on as a new one.
    pub(crate) fn begin_again(&mut self, becomes: ConsumerId, granter: Granter) {
        self.ended = self.id.replace(becomes);
        self.granter = granter;
        self.at_end = false;
        (self.granted, self.delivered) = (0, 0);
    }

    /// Whether it has asked for anything since the last seek, if there was one.
    pub(crate) fn came_back(&self) -> bool {
        self.ended.is_none() || self.granted > 0
    }

    /// Asks for messages; true if the shard's doorbell is to be rung.
    pub(crate) fn grant(&mut self, messages: u32) -> bool {
        let grant = self.granter.grant(messages);
        if grant != Grant::Ignored {
            self.granted += u64::from(messages);
        }
        grant == Grant::Ring
    }
}
