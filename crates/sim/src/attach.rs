//! Consumers come and go, and what a topic's subscriptions go by changes.

use pelton_broker::storage::Durability;
use pelton_broker::{InitialPosition, Policy, SeekTo, SubscriptionKind};

use crate::actions::free_slot;
use crate::clients::Consumer;
use crate::core::Ask;
use crate::oracle::{Check, hold};
use crate::replies::Asked;
use crate::sub::{Seek, Sub, Wish};
use crate::unstored::Passed;
use crate::world::World;

impl World {
    pub(crate) fn subscribe(
        &mut self,
        topic: usize,
        name: &str,
        (wish, initial): (Wish, InitialPosition),
        granted: u32,
    ) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, topic_name) = (state.shard, state.name.clone());
        let Some(id) = state.life.as_ref().and_then(|life| life.id) else {
            return self.open_topic(topic, false);
        };
        let slot = free_slot(&self.consumers, |c| {
            let here = c.attached && self.oracle.topics[c.topic].shard == shard;
            here.then_some(c.slot)
        });
        let (mut consumer, account) = Consumer::new(&wish, topic, name.to_owned(), slot);
        let ask = Ask::Subscribe {
            topic: id,
            sub: name.to_owned(),
            wish: wish.clone(),
            initial,
            account,
            slot,
        };
        if let Some(why) = self
            .oracle
            .life(topic)
            .sub(name)
            .and_then(|sub| refusal(sub, &wish))
        {
            return self.ask(shard, ask, Asked::Refused(why));
        }
        if granted > 0 {
            let rung = consumer.grant(granted);
            hold("D12 doorbell", !rung, || {
                "nobody waits for a newcomer".to_owned()
            })?;
        }
        let made = self.sub_for(topic, (name, wish.durable), initial);
        let (at, now_ns) = (self.consumers.len(), self.now.mono_ns);
        let life = self.oracle.life(topic);
        let of = life.subs.iter_mut().find(|sub| sub.name == name);
        let sub = of.expect("it was made");
        if !sub.attach(at, &wish, (&topic_name, &life.entries), now_ns) {
            if made {
                life.subs.retain(|sub| sub.name != name);
            }
            return self.ask(shard, ask, Asked::Refused("keys"));
        }
        self.consumers.push(consumer);
        self.ask(shard, ask, Asked::Subscribe { consumer: at, made })
    }

    /// The subscription as a consumer finds it: whether it is made for it.
    fn sub_for(
        &mut self,
        topic: usize,
        (name, durable): (&str, bool),
        initial: InitialPosition,
    ) -> bool {
        self.oracle.last_ack += 1;
        let ack = self.oracle.last_ack;
        let durability = self.oracle.topics[topic].durability;
        let life = self.oracle.life(topic);
        if life.sub(name).is_some() {
            return false;
        }
        let mut sub = Sub::new(name, durable, life.policy());
        if durability == Durability::NonPersistent {
            sub.passed = Some(Passed::new(life.entries.len()));
            life.subs.push(sub);
            return true;
        }
        let start = life.start_of(durability, &initial.into());
        sub.start(start, ack);
        life.subs.push(sub);
        true
    }

    pub(crate) fn close_consumer(&mut self, consumer: usize) -> Check {
        let of = &mut self.consumers[consumer];
        let (Some(id), topic) = (of.id.filter(|_| of.told), of.topic) else {
            return Ok(());
        };
        let (came_back, now_ns) = (of.came_back(), self.now.mono_ns);
        if std::mem::take(&mut of.attached)
            && let Some((sub, entries)) = self.oracle.sub_of(&self.consumers[consumer])
        {
            sub.detach(consumer, entries, now_ns);
            if sub.ends(came_back) {
                let name = sub.name.clone();
                self.forget_sub(topic, &name);
            }
        }
        let shard = self.oracle.topics[topic].shard;
        self.ask(shard, Ask::CloseConsumer(id), Asked::Plain)
    }

    pub(crate) fn unsubscribe(&mut self, topic: usize, name: &str) -> Check {
        let state = &mut self.oracle.topics[topic];
        let shard = state.shard;
        let Some((life, id)) = state.opened() else {
            return Ok(());
        };
        let asked = match life.sub(name) {
            None => Asked::Refused("not found"),
            Some(sub) if !sub.consumers.is_empty() => Asked::Refused("in use"),
            Some(_) => {
                self.forget_sub(topic, name);
                Asked::Plain
            }
        };
        self.ask(shard, Ask::Unsubscribe(id, name.to_owned()), asked)
    }

    pub(crate) fn seek(&mut self, topic: usize, name: &str, to: SeekTo) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, durability) = (state.shard, state.durability);
        let Some((life, id)) = state.opened() else {
            return Ok(());
        };
        let start = life.start_of(durability, &to);
        self.oracle.last_ack += 1;
        let (ack, failed) = (self.oracle.last_ack, false);
        let poisoned = self.shards[shard].poisoned && durability.is_stored();
        let asked = match life.subs.iter_mut().find(|sub| sub.name == name) {
            None => Asked::Refused("not found"),
            Some(sub) if sub.passed.is_some() => Asked::Refused("not possible"),
            Some(sub) if poisoned && sub.durable => Asked::Refused("poisoned"),
            Some(sub) => {
                let seek = Seek { start, ack, failed };
                sub.begin_seek(seek, &life.entries, self.now.mono_ns);
                Asked::Seek { topic, ack }
            }
        };
        self.ask(shard, Ask::Seek(id, name.to_owned(), to), asked)
    }

    pub(crate) fn terminate(&mut self, topic: usize) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, durability) = (state.shard, state.durability);
        let Some((life, id)) = state.opened() else {
            return Ok(());
        };
        let asked = match durability {
            Durability::NonPersistent => Asked::Refused("not possible"),
            _ => {
                life.end.asked += 1;
                let life = life.serial;
                Asked::Terminate { topic, life }
            }
        };
        self.ask(shard, Ask::Terminate(id), asked)
    }

    pub(crate) fn last_position(&mut self, topic: usize, name: &str) -> Check {
        let state = &mut self.oracle.topics[topic];
        let shard = state.shard;
        let Some((life, id)) = state.opened() else {
            return Ok(());
        };
        let name = name.to_owned();
        let asked = match life.sub(&name) {
            None => Asked::Refused("not found"),
            Some(_) => Asked::LastPosition {
                topic,
                name: name.clone(),
            },
        };
        self.ask(shard, Ask::LastPosition(id, name), asked)
    }

    pub(crate) fn set_policy(&mut self, topic: usize, policy: Policy) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, durability) = (state.shard, state.durability);
        let Some((life, id)) = state.opened() else {
            return Ok(());
        };
        let number = life.policies.len();
        life.policies.push((policy.clone(), true));
        life.use_policy();
        let (life, asked) = (life.serial, durability.is_stored());
        let asked = match asked {
            true => Asked::SetPolicy {
                topic,
                life,
                number,
            },
            false => Asked::Done,
        };
        self.ask(shard, Ask::SetPolicy(id, policy), asked)
    }
}

/// Why a subscription takes no such consumer.
fn refusal(sub: &Sub, wish: &Wish) -> Option<&'static str> {
    let used = !sub.consumers.is_empty();
    if used && (sub.kind == SubscriptionKind::Exclusive || sub.kind != wish.kind) {
        return Some("busy");
    }
    let suits = sub.keys.as_ref().is_none_or(|keys| keys.suits(&wish.keys));
    if used && !suits {
        return Some("key mode");
    }
    (sub.durable != wish.durable).then_some("not possible")
}
