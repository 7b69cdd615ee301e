//! Who gets the next entry: what the subscription types differ in.

use crate::broker::SubIndex;
use crate::election::{Election, ElectionOptions, Step};
use crate::keys::{AssignError, KeyOrder, Owners, Ring, Split, Sticky};
use crate::redelivery::Return;
use crate::rotation::Rotation;
use crate::subscription::Consumer;
use crate::topic::Topic;
use crate::{Broker, ConsumerId, Effect, KeyShared, Subscribe, SubscriptionKind};

/// Entries of one pass (`dispatcherMaxReadBatchSize`).
pub(crate) const PASS_ENTRIES_MAX: u64 = 100;

#[derive(Debug)]
pub(crate) enum Selector {
    /// The one consumer.
    Exclusive(Option<u32>),
    /// The elected one.
    Failover(Box<Election>),
    /// Whose turn it is.
    Shared(Rotation),
    /// The owner of the entry's key.
    KeyShared(Box<KeyOrder>),
}

impl Selector {
    /// For a subscription whose first consumer attaches: its wishes hold for those who follow.
    pub(crate) fn new(first: &Subscribe, topic: &Topic) -> Self {
        let policy = &topic.policy;
        match first.kind {
            SubscriptionKind::Exclusive => Selector::Exclusive(None),
            SubscriptionKind::Failover => {
                let options = ElectionOptions {
                    quiet_ns: policy.failover_rebalance_quiet_millis * 1_000_000,
                    takeover_ns: policy.active_consumer_failover_delay_time_millis * 1_000_000,
                };
                let election = Election::new(&topic.name, topic.partition(), options);
                Selector::Failover(Box::new(election))
            }
            SubscriptionKind::Shared => Selector::Shared(Rotation::default()),
            SubscriptionKind::KeyShared => {
                let points = policy.subscription_key_shared_consistent_hashing_replica_points;
                let owners = if !first.key_shared.ranges.is_empty() {
                    Owners::Sticky(Sticky::default())
                } else if policy.subscription_key_shared_use_consistent_hashing {
                    Owners::Ring(Ring::new(points))
                } else {
                    Owners::Split(Split::default())
                };
                let out_of_order = first.key_shared.allow_out_of_order_delivery;
                Selector::KeyShared(Box::new(KeyOrder::new(owners, out_of_order)))
            }
        }
    }

    /// Whether those who are attached asked for the same way of sharing out keys (KeyShared).
    pub(crate) fn shares_keys_as(&self, wish: &KeyShared) -> bool {
        let Selector::KeyShared(order) = self else {
            return true;
        };
        let sticky = matches!(order.owners(), Owners::Sticky(_));
        sticky != wish.ranges.is_empty()
            && order.is_out_of_order() == wish.allow_out_of_order_delivery
    }

    /// Takes the newcomer's keys for it (KeyShared).
    ///
    /// # Errors
    /// Another consumer has them.
    pub(crate) fn admit(&mut self, newcomer: &Subscribe) -> Result<(), AssignError> {
        match self {
            Selector::KeyShared(order) => {
                let ranges = &newcomer.key_shared.ranges;
                order.join(newcomer.slot, &newcomer.consumer, ranges)
            }
            _ => Ok(()),
        }
    }

    /// The consumer may get entries (again).
    pub(crate) fn offer(&mut self, slot: u32, consumer: &mut Consumer) {
        if std::mem::replace(&mut consumer.offered, true) {
            return;
        }
        match self {
            Selector::Shared(rotation) => rotation.push(slot, consumer.priority_level),
            Selector::KeyShared(order) => order.set_eligible(slot, true),
            Selector::Exclusive(_) | Selector::Failover(_) => {}
        }
    }

    /// The consumer is leaving: it gets nothing any more.
    pub(crate) fn remove(&mut self, slot: u32, consumer: &mut Consumer) {
        let offered = std::mem::take(&mut consumer.offered);
        match self {
            Selector::Exclusive(active) => *active = None,
            Selector::Shared(rotation) if offered => {
                rotation.remove(slot, consumer.priority_level);
            }
            Selector::KeyShared(order) => order.leave(slot),
            Selector::Shared(_) | Selector::Failover(_) => {}
        }
    }

    /// Who is next whatever the entry is, and how many entries its turn has left. Of a KeyShared
    /// subscription the entry decides: see `keyed.rs`.
    pub(crate) fn pick(
        &mut self,
        consumers: &mut [Option<Consumer>],
        entries_per_turn: u64,
    ) -> Option<(u32, u64)> {
        let mut may_go = |slot: u32| {
            consumers[slot as usize].as_mut().is_some_and(|consumer| {
                consumer.offered = consumer.may_go();
                consumer.offered
            })
        };
        match self {
            Selector::Exclusive(active) => {
                let slot = (*active)?;
                may_go(slot).then_some((slot, PASS_ENTRIES_MAX))
            }
            Selector::Failover(election) => {
                let slot = election.may_start()?;
                may_go(slot).then_some((slot, PASS_ENTRIES_MAX))
            }
            Selector::Shared(rotation) => rotation.pick(entries_per_turn, PASS_ENTRIES_MAX, may_go),
            Selector::KeyShared(_) => None,
        }
    }

    /// The one picked got so many entries.
    pub(crate) fn took(&mut self, slot: u32, entries: u64) {
        if let Selector::Shared(rotation) = self {
            rotation.took(slot, entries);
        }
    }

    pub(crate) fn end_of_pass(&mut self) {
        if let Selector::Shared(rotation) = self {
            rotation.end_of_pass();
        }
    }
}

impl Broker {
    /// A consumer has attached.
    pub(crate) fn joined(&mut self, index: SubIndex, slot: u32) {
        let now_ns = self.now.mono_ns;
        let sub = self.subs[index.0 as usize].as_mut().expect("attached");
        let consumer = self.consumers[slot as usize].as_ref().expect("attached");
        let step = match &mut sub.selector {
            Selector::Exclusive(active) => {
                *active = Some(slot);
                Step::Nothing
            }
            Selector::Failover(election) => {
                election.join(slot, &consumer.name, consumer.priority_level, now_ns)
            }
            Selector::Shared(_) | Selector::KeyShared(_) => Step::Nothing,
        };
        self.offer(index, slot);
        self.elected(index, step);
    }

    /// A consumer has gone, and what it held is owed again.
    pub(crate) fn left(&mut self, index: SubIndex, slot: u32) {
        let now_ns = self.now.mono_ns;
        let step = match &mut self.sub_mut(index).selector {
            Selector::Failover(election) => election.leave(slot, now_ns),
            _ => Step::Nothing,
        };
        self.elected(index, step);
    }

    /// The instant at which the subscription has something to do though nothing happens has come.
    pub(crate) fn on_alarm(&mut self, index: SubIndex) {
        if self.end_wait(index) {
            return;
        }
        let now_ns = self.now.mono_ns;
        let step = match &mut self.sub_mut(index).selector {
            Selector::Failover(election) => election.tick(now_ns),
            _ => Step::Nothing,
        };
        self.elected(index, step);
        self.end_delays(index);
        self.arm(index);
        self.want(index);
    }

    /// Tells who is active, before its first entry; a new one starts at the first unacked entry
    /// that the old one does not hold (rules D73 to D75).
    fn elected(&mut self, index: SubIndex, step: Step) {
        let Selector::Failover(election) = &mut self.sub_mut(index).selector else {
            return;
        };
        let mut told: Vec<(u32, bool)> = election.notices(step).collect();
        told.sort_by_key(|&(_, active)| active); // never two at a time
        if let Step::Changed { old: Some(old), .. } = step {
            let holds = self.consumers[old as usize]
                .as_ref()
                .filter(|consumer| consumer.sub == index)
                .map_or(0, |consumer| consumer.unacked);
            if let Selector::Failover(election) = &mut self.sub_mut(index).selector {
                election.old_holds(old, holds);
            }
        }
        for (slot, active) in told {
            if let Some(consumer) = self.consumers[slot as usize].as_ref() {
                let serial = consumer.serial;
                let consumer = ConsumerId { slot, serial };
                self.effects.push_back(Effect::Active { consumer, active });
            }
        }
        self.arm(index);
        self.want(index);
    }

    /// The wait for the old active consumer of a Failover subscription is over: what it still holds
    /// is owed to the new one (rules D73 and D74).
    pub(crate) fn take_over(&mut self, index: SubIndex) {
        let sub = self.sub(index);
        let Selector::Failover(election) = &sub.selector else {
            return;
        };
        let Some(active) = election.may_start() else {
            return;
        };
        let others = sub.consumers.iter().copied().filter(|&slot| slot != active);
        let holders: Vec<u32> = others
            .filter(|&slot| {
                self.consumers[slot as usize]
                    .as_ref()
                    .is_some_and(|c| c.unacked > 0)
            })
            .collect();
        for slot in holders {
            self.give_back_all(index, Some(slot), Return::Rewound);
        }
        while self.freed.pop().is_some() {}
    }
}
