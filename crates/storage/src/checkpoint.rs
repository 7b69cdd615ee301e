//! Checkpoints: the whole ack state written again, so that old cursor records can be forgotten.
//!
//! One starts with each roll and is spread over the blocks that follow, a part per block, so that
//! no turn is long. Segments since the start of the last complete checkpoint are kept.
use std::collections::BTreeMap;

use crate::cursor::{Image, Sub};
use crate::entry::{SubKey, TopicKey};
use crate::format::{SECTION_HEADER_BYTES, push_section, put_u32, section};
use crate::partial::push_piece;
use crate::position::Position;
use crate::recover::RecoveredTopic;
use crate::segments::Segments;
use crate::topic::{Live, Topic};

/// Where the current checkpoint is, and the last complete one.
#[derive(Debug, Default)]
pub(crate) struct Checkpoint {
    progress: Option<Progress>,
    pub(crate) number: u64,
    /// Sequence of the block with the start of the last complete, synced checkpoint; segments that
    /// end before it are not needed for cursors.
    pub(crate) floor_seq: u64,
    /// Start and end of a checkpoint that is complete and not synced yet.
    waiting: Option<(u64, u64)>,
    start_seq: u64,
    /// A roll happened while one was under way: another follows it.
    due: bool,
    /// Cost of the last one and what was written since it began, in bytes: a checkpoint that is
    /// larger than a few segments does not start anew at each of them.
    bytes: u64,
    pub(crate) bytes_since_start: u64,
}

#[derive(Debug, Default)]
struct Progress {
    started: bool,
    live: Vec<u64>,
    live_at: usize,
    phase: Phase,
    /// Subscription being written in parts, and where to go on.
    resume: Option<(TopicKey, SubKey, Resume)>,
}

/// Where a cursor goes on.
#[derive(Clone, Copy, Debug)]
enum Resume {
    /// The stretches from here on.
    Acked(Key),
    /// The partly acked entries from here on, the first of them from this word on.
    Partial(Key, usize),
}

/// An ordinal behind a 0; of a topic that nobody has opened, ledger and entry.
type Key = (u64, u64);

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Recovered topics nobody has opened; the last subscription written.
    Recovered(Option<(TopicKey, SubKey)>),
    /// Their sequences: of these topics on, and of the first from this producer on.
    RecoveredSequences(TopicKey, u64),
    /// Open topics from this slot on; the last subscription written.
    Open(u32, Option<SubKey>),
    /// Sequences of open topics from this slot on, of the first from this producer on.
    OpenSequences(u32, u64),
}

impl Default for Phase {
    fn default() -> Phase {
        Phase::Recovered(None)
    }
}

/// What a part of a checkpoint was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) sections: u32,
    pub(crate) starts: bool,
    pub(crate) ends: bool,
}

/// Longest fixed part of a cursor section.
const CURSOR_HEAD_BYTES: usize = SECTION_HEADER_BYTES + 40;
const RUN_HEAD_BYTES: usize = 24;
/// Least room a part is worth starting in.
pub(crate) const PART_BYTES_MIN: usize = 1024;

impl Checkpoint {
    pub(crate) fn is_active(&self) -> bool {
        self.progress.is_some()
    }

    /// A roll: starts one, after the one under way if there is one, unless the last one is still
    /// large beside what was written since.
    pub(crate) fn start_at_roll(&mut self) {
        if self.is_active() || self.waiting.is_some() {
            self.due = true;
        } else if self.bytes_since_start >= 2 * self.bytes {
            self.start();
        }
    }

    /// Consumed segments through `last_seq` could be used again if a checkpoint started behind
    /// them, and spares are short.
    pub(crate) fn start_for(&mut self, last_seq: u64) {
        if !self.is_active() && self.waiting.is_none() && self.start_seq <= last_seq {
            self.start();
        }
    }

    pub(crate) fn start(&mut self) {
        self.number += 1;
        self.due = false;
        self.bytes = 0;
        self.bytes_since_start = 0;
        self.progress = Some(Progress::default());
    }

    /// A block with a part of it was laid out.
    pub(crate) fn note_block(&mut self, seq: u64, part: Part, bytes: usize) {
        self.bytes += bytes as u64;
        if part.starts {
            self.start_seq = seq;
        }
        if part.ends {
            self.waiting = Some((self.start_seq, seq));
        }
    }

    /// Blocks through `seq` are synced; true if that completes a checkpoint.
    pub(crate) fn note_synced(&mut self, seq: u64) -> bool {
        match self.waiting {
            Some((start, end)) if end <= seq => {
                self.floor_seq = start;
                self.waiting = None;
                if std::mem::take(&mut self.due) {
                    self.start_at_roll();
                }
                true
            }
            _ => false,
        }
    }

    /// Appends the next part to `out`, at most `budget` bytes, which is `PART_BYTES_MIN` or more.
    /// It stops before a subscription with a reset in a later block (`resets_waiting`): what it says
    /// is from behind that reset, and the acks from before it would be added to that.
    pub(crate) fn fill(
        &mut self,
        out: &mut Vec<u8>,
        budget: usize,
        topics: &[Topic],
        recovered: &BTreeMap<TopicKey, RecoveredTopic>,
        segments: &Segments,
        resets_waiting: &[(u64, u64)],
    ) -> Part {
        let mut part = Part::default();
        let Some(mut progress) = self.progress.take() else {
            return part;
        };
        let limit = out.len() + budget;
        if !progress.started {
            progress.started = true;
            // As of this block: segments sealed later follow it in the chain.
            progress.live.extend(segments.live_ids());
            part.starts = true;
            push_section(out, section::CHECKPOINT_START, &[self.number]);
            part.sections += 1;
        }
        if !progress.fill_live(out, limit, &mut part)
            || !progress.fill_recovered(out, limit, recovered, &mut part)
            || !progress.fill_recovered_sequences(out, limit, recovered, &mut part)
            || !progress.fill_open(out, limit, topics, resets_waiting, &mut part)
            || !progress.fill_open_sequences(out, limit, topics, &mut part)
            || out.len() + SECTION_HEADER_BYTES + 8 > limit
        {
            self.progress = Some(progress);
            return part;
        }
        push_section(out, section::CHECKPOINT_END, &[self.number]);
        part.sections += 1;
        part.ends = true;
        part
    }
}

impl Progress {
    /// Each of these gives false when the room is used up.
    fn fill_live(&mut self, out: &mut Vec<u8>, limit: usize, part: &mut Part) -> bool {
        let left = &self.live[self.live_at..];
        if left.is_empty() {
            return true;
        }
        let room = limit.saturating_sub(out.len() + SECTION_HEADER_BYTES) / 8;
        let count = room.min(left.len());
        if count > 0 {
            push_section(out, section::LIVE_SEGMENTS, &left[..count]);
            part.sections += 1;
            self.live_at += count;
        }
        self.live_at == self.live.len()
    }

    fn fill_recovered(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        recovered: &BTreeMap<TopicKey, RecoveredTopic>,
        part: &mut Part,
    ) -> bool {
        let Phase::Recovered(mut after) = self.phase else {
            return true;
        };
        let from = after.map_or(TopicKey(0), |(topic, _)| topic);
        for (&topic, state) in recovered.range(from..) {
            for (&sub, image) in &state.cursors {
                if after.is_some_and(|after| (topic, sub) <= after) {
                    continue;
                }
                if !self.put_image(out, limit, (topic, sub), state, image, part) {
                    return false;
                }
                after = Some((topic, sub));
                self.phase = Phase::Recovered(after);
            }
        }
        self.phase = Phase::RecoveredSequences(TopicKey(0), 0);
        self.resume = None;
        true
    }

    fn fill_recovered_sequences(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        recovered: &BTreeMap<TopicKey, RecoveredTopic>,
        part: &mut Part,
    ) -> bool {
        let Phase::RecoveredSequences(from, mut producer) = self.phase else {
            return true;
        };
        for (&topic, found) in recovered.range(from..) {
            if let Err(rest) = found.sequences.put(out, limit, topic, producer, part) {
                self.phase = Phase::RecoveredSequences(topic, rest);
                return false;
            }
            producer = 0;
        }
        self.phase = Phase::Open(0, None);
        true
    }

    fn fill_open_sequences(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        topics: &[Topic],
        part: &mut Part,
    ) -> bool {
        let Phase::OpenSequences(mut slot, mut producer) = self.phase else {
            return true;
        };
        while let Some(topic) = topics.get(slot as usize) {
            if let Some(live) = topic.live.as_deref()
                && let Err(rest) = live.sequences.put(out, limit, topic.key, producer, part)
            {
                self.phase = Phase::OpenSequences(slot, rest);
                return false;
            }
            slot += 1;
            producer = 0;
        }
        self.phase = Phase::OpenSequences(slot, 0);
        true
    }

    fn fill_open(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        topics: &[Topic],
        resets_waiting: &[(u64, u64)],
        part: &mut Part,
    ) -> bool {
        let Phase::Open(mut slot, mut after) = self.phase else {
            return true;
        };
        while let Some(topic) = topics.get(slot as usize) {
            while let Some(live) = topic.live.as_deref()
                && let Some(sub) = live.subs.next_after(after)
            {
                let is_ahead = resets_waiting.contains(&(topic.key.0, sub.key.0));
                if is_ahead || !self.put_sub(out, limit, topic.key, sub, live, part) {
                    self.phase = Phase::Open(slot, after);
                    return false;
                }
                after = Some(sub.key);
                self.resume = None;
            }
            slot += 1;
            after = None;
        }
        self.phase = Phase::OpenSequences(0, 0);
        true
    }

    /// A cursor nobody has opened: its mark, its stretches one by one, its partly acked entries.
    fn put_image(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        (topic, sub): (TopicKey, SubKey),
        found: &RecoveredTopic,
        image: &Image,
        part: &mut Part,
    ) -> bool {
        let resume = self.resume_of(topic, sub);
        if resume.is_none() {
            if out.len() + CURSOR_HEAD_BYTES > limit {
                return false;
            }
            push_cursor_head(out, topic, sub, image.mark);
            part.sections += 1;
        }
        let (key, word) = match resume.unwrap_or(Resume::Acked((0, 0))) {
            Resume::Acked(from) => {
                for (first, count) in image.acked_from(from) {
                    if out.len() + SECTION_HEADER_BYTES + 48 > limit {
                        let key = (first.ledger, first.entry);
                        self.resume = Some((topic, sub, Resume::Acked(key)));
                        return false;
                    }
                    let count = count.min(u64::from(u32::MAX));
                    let words = [topic.0, sub.0, first.ledger, first.entry, 1, count << 32];
                    push_section(out, section::ACKED, &words);
                    part.sections += 1;
                }
                ((0, 0), 0)
            }
            Resume::Partial(key, word) => (key, word),
        };
        let sets = image
            .partial_from(key, |at| found.messages(at))
            .map(|(at, words)| ((at.ledger, at.entry), at, words));
        self.put_partial(out, limit, (topic, sub), sets, word, part)
    }

    fn resume_of(&self, topic: TopicKey, sub: SubKey) -> Option<Resume> {
        self.resume
            .filter(|&(t, s, _)| (t, s) == (topic, sub))
            .map(|(_, _, at)| at)
    }

    fn put_sub(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        topic: TopicKey,
        sub: &Sub,
        live: &Live,
        part: &mut Part,
    ) -> bool {
        let (ordinal, word) = match self.resume_of(topic, sub.key) {
            Some(Resume::Partial((_, ordinal), word)) => (ordinal, word),
            resume => {
                let from = match resume {
                    Some(Resume::Acked((_, ordinal))) => ordinal,
                    _ => 0,
                };
                match put_stretches(out, limit, topic, sub, live, from, part) {
                    None => (0, 0),
                    Some(from) => {
                        self.resume = Some((topic, sub.key, Resume::Acked((0, from))));
                        return false;
                    }
                }
            }
        };
        let sets = sub.partial_from(ordinal).filter_map(|(ordinal, words)| {
            let at = live.ledgers.position(ordinal)?;
            Some(((0, ordinal), at, words))
        });
        self.put_partial(out, limit, (topic, sub.key), sets, word, part)
    }

    /// Writes sets, the first of them from its word `word` on, if it is still as long.
    fn put_partial<W: AsRef<[u64]>>(
        &mut self,
        out: &mut Vec<u8>,
        limit: usize,
        (topic, sub): (TopicKey, SubKey),
        sets: impl Iterator<Item = (Key, Position, W)>,
        word: usize,
        part: &mut Part,
    ) -> bool {
        let mut word = word;
        for (key, at, words) in sets {
            let words = words.as_ref();
            while word < words.len() {
                let room = limit.saturating_sub(out.len());
                let count = push_piece(out, (topic.0, sub.0), at, words, word, room);
                if count == 0 {
                    self.resume = Some((topic, sub, Resume::Partial(key, word)));
                    return false;
                }
                part.sections += 1;
                word += count;
            }
            word = 0;
        }
        self.resume = None;
        true
    }
}

/// Writes mark and stretches from the ordinal `from` on. Gives the ordinal to go on with if the room
/// is used up.
fn put_stretches(
    out: &mut Vec<u8>,
    limit: usize,
    topic: TopicKey,
    sub: &Sub,
    live: &Live,
    from: u64,
    part: &mut Part,
) -> Option<u64> {
    if out.len() + CURSOR_HEAD_BYTES + RUN_HEAD_BYTES + 8 > limit {
        return Some(from);
    }
    let at = push_cursor_head(out, topic, sub.key, sub.mark_at);
    part.sections += 1;
    let mut next = from;
    let mut runs = 0;
    let rest = loop {
        let Some((first, _)) = sub.next_acked(next, 1) else {
            break None;
        };
        if out.len() + RUN_HEAD_BYTES + 8 > limit {
            break Some(next);
        }
        let Some((run, first, count)) = live.ledgers.pieces(first, live.end).next() else {
            break None;
        };
        let room = (limit - out.len() - RUN_HEAD_BYTES) / 8;
        let at = run.position(first);
        next = first + push_run(out, sub, at, first, count, room);
        runs += 1;
    };
    let payload = out.len() - at - SECTION_HEADER_BYTES;
    put_u32(out, at + 4, payload as u32);
    put_u32(out, at + SECTION_HEADER_BYTES + 20, runs);
    rest
}

/// Appends the fixed part of a cursor section; gives where it starts. Its length and number of
/// runs are those of a section without runs.
fn push_cursor_head(
    out: &mut Vec<u8>,
    topic: TopicKey,
    sub: SubKey,
    mark: Option<Position>,
) -> usize {
    let start = out.len();
    let has_mark = u64::from(mark.is_some());
    let at = mark.unwrap_or_default();
    let words = [topic.0, sub.0, has_mark, at.ledger, at.entry];
    push_section(out, section::CURSOR, &words);
    start
}

/// Appends one run of bits from `first` on, at most `count` ordinals and `room` words; it ends
/// before two words without a bit. Gives the ordinals covered.
fn push_run(
    out: &mut Vec<u8>,
    sub: &Sub,
    at: Position,
    first: u64,
    count: u64,
    room: usize,
) -> u64 {
    let head = out.len();
    for word in [at.ledger, at.entry, 0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let mut words = 0u64;
    let mut empty = 0;
    while words < room as u64 && words * 64 < count && empty < 2 {
        let left = count - words * 64;
        let mask = if left >= 64 {
            u64::MAX
        } else {
            (1 << left) - 1
        };
        let bits = sub.bits_at(first + words * 64) & mask;
        empty = if bits == 0 { empty + 1 } else { 0 };
        out.extend_from_slice(&bits.to_le_bytes());
        words += 1;
    }
    put_u32(out, head + 16, words as u32);
    (words * 64).min(count)
}
