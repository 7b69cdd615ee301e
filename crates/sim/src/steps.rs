//! What can happen in a world, one step at a time, and lists of steps from a seed or from bytes.
//!
//! A step names its subject by a number that is taken modulo what exists when it runs, and carries all
//! the chance it needs. So any list of steps can be run, and so can what is left after some are dropped:
//! that is what makes failures shrink.

use crate::chance::Chance;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client asks for a topic; `odd`: with another durability than it has.
    OpenTopic { topic: u8, odd: bool },
    /// A client asks for the end of a topic, used or not.
    DeleteTopic { topic: u8 },
    /// A producer attaches.
    OpenProducer { topic: u8 },
    /// A producer leaves.
    CloseProducer { producer: u8 },
    /// A producer sends a few entries; `size` chooses messages and bytes. Also one that has left.
    Publish { producer: u8, entries: u8, size: u8 },
    /// A consumer attaches, granting so many messages before it is told so. `kind` says how it wants
    /// to share, mostly as the others of that subscription do; `who` its name and level.
    Subscribe {
        topic: u8,
        sub: u8,
        kind: u8,
        who: u8,
        start: u8,
        granted: u8,
    },
    /// A subscription is to go on somewhere else.
    Seek {
        topic: u8,
        sub: u8,
        start: u8,
        pick: u8,
        index: u16,
    },
    /// A topic is to take nothing more.
    Terminate { topic: u8 },
    /// A client asks where a topic ends and how far a subscription is.
    LastPosition { topic: u8, sub: u8 },
    /// A consumer leaves.
    CloseConsumer { consumer: u8 },
    /// A client asks for the end of a subscription, used or not.
    Unsubscribe { topic: u8, sub: u8 },
    /// A consumer asks for messages.
    Grant { consumer: u8, messages: u16 },
    /// A consumer acks one of the last entries it saw: held, acked before, or taken from it. Also one
    /// that has left.
    Ack { consumer: u8, pick: u8 },
    /// A consumer acks consecutive entries, from one that it saw on.
    AckRun { consumer: u8, pick: u8, entries: u8 },
    /// A consumer acks some messages of an entry that it saw: those of which `seed` has no bit.
    AckBatch { consumer: u8, pick: u8, seed: u16 },
    /// A consumer acks everything up to an entry that it saw, and of that all or a part.
    AckCumulative { consumer: u8, pick: u8, part: u8 },
    /// A consumer acks what another saw, or what does not exist.
    AckFalse { consumer: u8, pick: u8, kind: u8 },
    /// A consumer gives back so many of the last entries it saw, held or not, to have them again at
    /// once, later, or when the policy says.
    Nack {
        consumer: u8,
        pick: u8,
        entries: u8,
        delay: u8,
    },
    /// A consumer gives back all it holds.
    NackAll { consumer: u8 },
    /// A consumer gives back an entry as if it had not had it.
    Release { consumer: u8, pick: u8 },
    /// A topic gets another policy.
    SetPolicy { topic: u8, seed: u16 },
    /// A consumer asks to hear when its acks are durable.
    FlushAcks { consumer: u8 },
    /// A shard takes a turn.
    Turn { shard: u8 },
    /// One operation of a shard's disk or metadata ends.
    Complete { shard: u8, pick: u8 },
    /// Turns and completions until a shard comes to rest.
    Settle { shard: u8 },
    /// Time passes.
    Pass { micros: u32 },
    /// The wall clock is set.
    SetWall { back: bool, seconds: u16 },
    /// Something will go wrong on a shard's disk.
    Fault {
        shard: u8,
        fault: Fault,
        chance: u16,
    },
    /// The next metadata transaction of a shard fails.
    MetaFault { shard: u8 },
    /// The process ends and a new one opens what is left.
    Crash { end: End, chance: u16 },
}

/// What goes wrong on a disk, once, at the next chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A write fails; part of it is there.
    Write,
    /// A write ends early.
    ShortWrite,
    /// A sync fails and forgets.
    Sync,
    /// A read fails.
    Read,
    /// A read ends early.
    ShortRead,
    /// A read is interrupted.
    Interrupt,
    /// A file cannot be made or recycled.
    Create,
    /// No more files, until there is [`Fault::Room`].
    Full,
    /// There is room again.
    Room,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In order: what was taken is committed first.
    Stop,
    /// Killed; the page cache lives.
    Kill,
    /// With the machine: of what was not synced any part is left.
    PowerCut,
}

/// How often each kind of step is chosen, in the order of [`decode`].
const WEIGHTS: [u32; KINDS] = [
    4, 1, 5, 1, 24, 10, 4, 1, 16, 14, 6, 4, 3, 6, 3, 24, 20, 2, 4, 1, 4, 1, 2, 5, 1, 3, 2, 3, 1, 1,
];
const KINDS: usize = 30;

/// Bytes of detail of a step.
const DETAIL: usize = 6;

/// The step of a kind with this detail.
fn decode(kind: usize, [a, b, c, d, e, f]: [u8; DETAIL]) -> Step {
    match kind {
        0 => Step::OpenTopic {
            topic: a,
            odd: b < 8,
        },
        1 => Step::DeleteTopic { topic: a },
        2 => Step::OpenProducer { topic: a },
        3 => Step::CloseProducer { producer: a },
        4 => Step::Publish {
            producer: a,
            entries: 1 + b % if c < 40 { 24 } else { 4 },
            size: d,
        },
        5 => Step::Subscribe {
            topic: a,
            sub: b,
            kind: c,
            who: e,
            start: f,
            granted: if d < 64 { d } else { 0 },
        },
        6 => Step::CloseConsumer { consumer: a },
        7 => Step::Unsubscribe { topic: a, sub: b },
        8 => Step::Grant {
            consumer: a,
            messages: if b < 16 { 1000 } else { 1 + u16::from(c % 40) },
        },
        9 => Step::Ack {
            consumer: a,
            pick: b,
        },
        10 => Step::AckRun {
            consumer: a,
            pick: b,
            entries: 1 + c % 12,
        },
        11 => Step::AckCumulative {
            consumer: a,
            pick: b,
            part: c,
        },
        12 => Step::AckFalse {
            consumer: a,
            pick: b,
            kind: c,
        },
        13 => Step::Nack {
            consumer: a,
            pick: b,
            entries: 1 + c % 6,
            delay: d,
        },
        14 => Step::FlushAcks { consumer: a },
        15 => Step::Turn { shard: a },
        16 => Step::Complete { shard: a, pick: b },
        17 => Step::Settle { shard: a },
        18 => Step::Pass {
            micros: if b < 16 { 1_100_000 } else { u32::from(c) * 10 },
        },
        19 => Step::SetWall {
            back: a % 2 == 0,
            seconds: u16::from_le_bytes([b, c]),
        },
        20 => Step::Fault {
            shard: a,
            fault: fault_of(b),
            chance: u16::from_le_bytes([c, d]),
        },
        21 => Step::MetaFault { shard: a },
        22 => Step::Crash {
            end: [End::Stop, End::Kill, End::PowerCut, End::PowerCut][usize::from(a % 4)],
            chance: u16::from_le_bytes([c, d]),
        },
        23 => Step::AckBatch {
            consumer: a,
            pick: b,
            seed: u16::from_le_bytes([c, d]),
        },
        24 => Step::NackAll { consumer: a },
        25 => Step::Release {
            consumer: a,
            pick: b,
        },
        26 => Step::SetPolicy {
            topic: a,
            seed: u16::from_le_bytes([c, d]),
        },
        27 => Step::Seek {
            topic: a,
            sub: b,
            start: c,
            pick: d,
            index: u16::from_le_bytes([e, f]),
        },
        28 => Step::LastPosition { topic: a, sub: b },
        // A topic that is over from the start shows little.
        _ if b < 128 => Step::Turn { shard: a },
        _ => Step::Terminate { topic: a },
    }
}

/// Those that end a life's usefulness are rare, or few lives would see much.
fn fault_of(b: u8) -> Fault {
    match b {
        0..6 => Fault::Write,
        6..16 => Fault::Sync,
        16..40 => Fault::ShortWrite,
        40..90 => Fault::Read,
        90..130 => Fault::ShortRead,
        130..160 => Fault::Interrupt,
        160..190 => Fault::Create,
        190..220 => Fault::Full,
        _ => Fault::Room,
    }
}

/// A list of steps from a seed. Each seed has its own mixture: what is rare in one is frequent in
/// another, which finds more than any one mixture does (Groce et al., swarm testing, ISSTA 2012).
pub(crate) fn from_seed(seed: u64, count: usize) -> Vec<Step> {
    let mut chance = Chance(seed ^ 0x57EB_5EED);
    let weights = WEIGHTS.map(|weight| weight * [0, 1, 1, 1, 3][chance.below(5) as usize]);
    // Without these nothing happens.
    let weights: Vec<u32> = (0..WEIGHTS.len())
        .map(|kind| match kind {
            0 | 2 | 4 | 5 | 8 | 15 | 16 => weights[kind].max(WEIGHTS[kind]),
            _ => weights[kind],
        })
        .collect();
    let sum = u64::from(weights.iter().sum::<u32>());
    let mut one = || {
        let mut at = chance.below(sum) as u32;
        let kind = weights.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        let detail = [(); DETAIL].map(|()| chance.byte());
        decode(kind.expect("below the sum"), detail)
    };
    (0..count).map(|_| one()).collect()
}

/// A list of steps from any bytes: seven a step, so that nearly every mutation is another list.
pub(crate) fn from_bytes(bytes: &[u8]) -> Vec<Step> {
    let step = |bytes: &[u8; 1 + DETAIL]| {
        let [kind, detail @ ..] = *bytes;
        decode(usize::from(kind) % WEIGHTS.len(), detail)
    };
    bytes.as_chunks().0.iter().map(step).collect()
}
