//! Dead letters: entries that go to another topic instead of coming again (rules D116 to D121).
//!
//! The entry leaves its holder, a copy is appended to the dead-letter topic, and once that copy is
//! durable the original is acked. That topic may live on another shard, so the copy leaves as an
//! [`Effect::DeadLetter`], and what became of it comes back as an event. Until then the entry is
//! neither sent nor acked: a crash leaves a second copy at worst.

use std::collections::{BTreeMap, VecDeque};

use pelton_storage::{Block, Durability, Place};

use crate::broker::SubIndex;
use crate::properties::push_property;
use crate::timers::Timers;
use crate::topic::Topic;
use crate::window::State;
use crate::{Broker, Effect};

/// Copies on their way at a time; the others wait.
const SENT_MAX: usize = 64;
/// Bytes of copies on their way, unless one alone is larger.
const SENT_BYTES_MAX: u64 = 8 << 20;
/// Wait after the first failed append; it doubles up to the second.
const RETRY_FIRST_NS: u64 = 100_000_000;
const RETRY_MAX_NS: u64 = 10_000_000_000;

/// A copy of an entry for a dead-letter topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The dead-letter topic; made if it does not exist.
    pub topic: String,
    /// What it is made with: that of the entry's own topic.
    pub durability: Durability,
    /// Made, at the first entry, before anything is appended, so that nothing is lost before
    /// somebody reads it (rule D118).
    pub initial_subscription: String,
    /// Messages in `body`, acked ones of a batch too.
    pub messages: u32,
    /// Hash of the entry's key, 0 without one.
    pub key_hash: u32,
    /// The entry's own, and those of rule D121: see [`crate::Properties`].
    pub properties: Vec<u8>,
    /// As it was published.
    pub body: Vec<u8>,
}

/// Why an entry is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    MaxRedeliveries,
    MaxDeliveries,
    Rejected,
    Deadline,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Reason::MaxRedeliveries => "max_redeliveries",
            Reason::MaxDeliveries => "max_deliveries",
            Reason::Rejected => "rejected",
            Reason::Deadline => "deadline",
        }
    }
}

/// Entries in [`State::DeadLettering`], by a token that names one of them until it is done.
#[derive(Debug, Default)]
pub(crate) struct DeadLetters {
    jobs: BTreeMap<u64, Job>,
    next_token: u64,
    /// Tokens of those to send, in their order.
    unsent: VecDeque<u64>,
    /// Tokens of those that were sent and not answered, with their bytes.
    sent: BTreeMap<u64, u64>,
    /// Tokens of those whose append failed, by the monotonic nanosecond of the next attempt.
    retries: Timers,
}

#[derive(Debug)]
struct Job {
    index: SubIndex,
    ordinal: u64,
    reason: Reason,
    failures: u32,
}

/// How far the writing of a copy came.
enum Written {
    Sent(u64),
    /// The entry is being read; its completion brings the next turn.
    Awaited,
    /// There is nothing to copy any more.
    Gone,
}

impl DeadLetters {
    /// When a failed one is tried again, monotonic nanoseconds.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.retries.next_due()
    }

    /// How many entries of the subscription are on their way.
    pub(crate) fn count_of(&self, index: SubIndex) -> u64 {
        let of = self.jobs.values().filter(|job| job.index == index);
        of.count() as u64
    }

    /// The subscription goes on somewhere else, or ends. Answers that still come find nothing.
    pub(crate) fn forget(&mut self, index: SubIndex) {
        self.jobs.retain(|_, job| job.index != index);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn may_send(&self) -> bool {
        let bytes: u64 = self.sent.values().sum();
        self.sent.len() < SENT_MAX && bytes < SENT_BYTES_MAX
    }
}

impl Broker {
    /// An entry that nobody holds is dead: it is copied, or, without a policy that says where to,
    /// acked and counted (rule D117).
    pub(crate) fn bury(&mut self, index: SubIndex, ordinal: u64, reason: Reason) {
        let sub = self.subs[index.0 as usize].as_mut().expect("in use");
        let topic = self.topics[sub.topic as usize].as_ref().expect("in use");
        if topic.policy.dead_letter.is_none() {
            return match reason {
                Reason::Deadline => self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.late),
                _ => self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.rejected),
            };
        }
        match sub.window.get(ordinal) {
            State::Replay => sub.end_replay(&self.log, ordinal),
            State::Delayed => sub.end_delay(&self.log, ordinal),
            State::Later => sub.end_later(&self.log, ordinal),
            State::Unread => {}
            State::Acked | State::DeadLettering | State::Damaged | State::Held(_) => return,
        }
        sub.window.set(ordinal, State::DeadLettering, 0);
        let letters = &mut self.dead_letters;
        let token = letters.next_token;
        letters.next_token += 1;
        letters.unsent.push_back(token);
        letters.jobs.insert(
            token,
            Job {
                index,
                ordinal,
                reason,
                failures: 0,
            },
        );
        self.want(index); // what stood behind it may go
    }

    /// Once per turn: sends what can be sent.
    pub(crate) fn send_letters(&mut self) {
        while let Some(token) = self.dead_letters.retries.pop_due(self.now.mono_ns) {
            self.dead_letters.unsent.push_back(token);
        }
        while self.dead_letters.may_send()
            && let Some(&token) = self.dead_letters.unsent.front()
        {
            match self.write_letter(token) {
                Written::Sent(bytes) => {
                    self.dead_letters.sent.insert(token, bytes);
                }
                Written::Gone => {
                    self.dead_letters.jobs.remove(&token);
                }
                Written::Awaited => return,
            }
            self.dead_letters.unsent.pop_front();
        }
    }

    fn write_letter(&mut self, token: u64) -> Written {
        let Some(&Job {
            index,
            ordinal,
            reason,
            ..
        }) = self.dead_letters.jobs.get(&token)
        else {
            return Written::Gone;
        };
        let sub = self.subs[index.0 as usize].as_mut().expect("it has a job");
        if sub.window.get(ordinal) != State::DeadLettering {
            return Written::Gone; // acked meanwhile
        }
        let Some((block, at, _)) = self.log.run(sub.slot, ordinal, 1) else {
            match self.log.locate(sub.slot, ordinal) {
                Place::Gone => return Written::Gone,
                Place::Failed => {
                    sub.damaged_entries += 1;
                    sub.window.set(ordinal, State::Damaged, 0);
                    return Written::Gone;
                }
                Place::OnDisk => {
                    self.log.fetch(sub.slot, ordinal, 1, 0);
                }
                Place::Reading | Place::Memory(..) => {}
            }
            return Written::Awaited;
        };
        let letter = self.letter(index, ordinal, reason, (&block, at));
        let Some(letter) = letter else {
            // The policy was taken back meanwhile.
            self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.rejected);
            return Written::Gone;
        };
        let bytes = (letter.body.len() + letter.properties.len()) as u64;
        let letter = Box::new(letter);
        self.effects.push_back(Effect::DeadLetter { token, letter });
        Written::Sent(bytes)
    }

    /// The copy with the properties of rule D121.
    fn letter(
        &self,
        index: SubIndex,
        ordinal: u64,
        reason: Reason,
        (block, at): (&Block, u32),
    ) -> Option<Letter> {
        let (sub, meta) = (self.sub(index), block.meta(at));
        let topic = self.topic_at(sub.topic);
        let policy = topic.policy.dead_letter.as_ref()?;
        let mut properties = block.properties(at).to_vec();
        let mut add = |name, value: &str| push_property(&mut properties, name, value);
        add("REAL_TOPIC", &topic.name);
        add("REAL_SUBSCRIPTION", &sub.name);
        let partition = topic.partition().map_or(-1, i64::from);
        let origin = format!(
            "{}:{}:{partition}",
            meta.position.ledger, meta.position.entry
        );
        add("ORIGIN_MESSAGE_ID", &origin);
        add("PELTON_REASON", reason.name());
        let count = sub.count_of(ordinal).to_string();
        add("PELTON_REDELIVERY_COUNT", &count);
        if let Some(set) = sub.partial.get(&ordinal) {
            let words = set.words().iter().map(|word| format!("{word:016x}"));
            add("PELTON_ACK_SET", &words.collect::<Vec<_>>().join(","));
        }
        Some(Letter {
            topic: policy
                .topic
                .clone()
                .unwrap_or_else(|| default_name(topic, &sub.name)),
            durability: topic.durability,
            initial_subscription: policy.initial_subscription.clone(),
            messages: meta.messages,
            key_hash: meta.key_hash,
            properties,
            body: block.body(at).to_vec(),
        })
    }

    /// What became of a copy. Durable: the original is done; else it is tried again (rule D120).
    pub(crate) fn dead_lettered(&mut self, token: u64, stored: bool) {
        let letters = &mut self.dead_letters;
        letters.sent.remove(&token);
        let Some(job) = letters.jobs.get_mut(&token) else {
            return;
        };
        if !stored {
            let doublings = job.failures.min(16);
            job.failures += 1;
            let wait_ns = (RETRY_FIRST_NS << doublings).min(RETRY_MAX_NS);
            letters.retries.arm(self.now.mono_ns + wait_ns, token);
            return;
        }
        let (index, ordinal) = (job.index, job.ordinal);
        letters.jobs.remove(&token);
        if self.sub(index).window.get(ordinal) == State::DeadLettering {
            self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.dead_lettered);
        }
    }
}

/// Rule D118.
fn default_name(topic: &Topic, subscription: &str) -> String {
    let name = match topic.partition() {
        Some(_) => topic.name.rsplit_once("-partition-").map(|(base, _)| base),
        None => None,
    };
    format!("{}-{subscription}-DLQ", name.unwrap_or(&topic.name))
}
