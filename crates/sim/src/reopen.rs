//! What must be left of a topic when an engine is opened again.
//!
//! Of what was promised nothing is missing, of what was never there nothing is found, and what is
//! missing is an end of the topic, never a hole in it.

use pelton_broker::storage::{CursorState, Durability, Position};

use crate::core::Found;
use crate::cursor::{Cursor, Still, all_of, both};
use crate::oracle::{Check, Entry, FOUND, Fate, Ledger, Life, Oracle, Violation, hold};
use crate::sub::{Seek, Start, Sub};

/// What the end of a life leaves standing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// Orderly: all that was taken is durable.
    pub(crate) orderly: bool,
    /// What was written and not synced may be gone.
    pub(crate) loses_written: bool,
}

impl Ending {
    fn keeps(self, durability: Durability) -> bool {
        self.orderly || durability == Durability::Synced || !self.loses_written
    }
}

impl Oracle {
    /// The engine was opened again: compares what recovery found on a shard, and goes on from there.
    pub(crate) fn reopened(&mut self, shard: usize, found: Vec<Found>, ending: Ending) -> Check {
        let mut found = found;
        for topic in self.topics.iter_mut().filter(|topic| topic.shard == shard) {
            let at = found
                .iter()
                .position(|found| found.record.name == topic.name);
            let found = at.map(|at| found.swap_remove(at));
            let lives = topic.life.take().into_iter().map(|life| (life, true));
            let former = topic.former.drain(..).map(|life| (life, false));
            if !topic.durability.is_stored() {
                former.for_each(drop);
                continue;
            }
            let key = found.as_ref().map(|found| found.record.key);
            let mut survivor = None;
            for (life, current) in lives.chain(former) {
                if Some(life.key) == key {
                    survivor = Some((life, current));
                    continue;
                }
                hold("T7 topic", !(current && life.answered), || {
                    format!("{} was promised, {key:?} is there", topic.name)
                })?;
            }
            let Some(found) = found else { continue };
            let same = survivor.is_some() && found.durability == topic.durability;
            hold("T7 topic", same, || {
                format!("nobody made {:?}", found.record)
            })?;
            if let Some((life, current)) = survivor {
                topic.life = Some(survive(life, &found, ending, current)?);
            }
        }
        hold("T7 topic", found.is_empty(), || {
            format!("{found:?} came from nowhere")
        })
    }
}

/// What is left of a topic, only what is there. Of one that was deleted nothing was promised.
fn survive(
    mut life: Life,
    found: &Found,
    ending: Ending,
    current: bool,
) -> Result<Life, Violation> {
    let keeps = current && ending.keeps(found.durability);
    let present = place(&mut life, &found.positions)?;
    if current {
        life.check_found(&found.sequences, &present, keeps)?;
    }
    let last = present.last().copied();
    for (at, entry) in life.entries.iter().enumerate().filter(|_| current) {
        let consumed = life
            .subs
            .iter()
            .all(|sub| !sub.durable || sub.cursor.is_acked(at));
        let consumed = consumed && at < life.stored_from();
        let promised = entry.fate == Fate::Found || entry.fate == Fate::Stored && keeps;
        let there = present.binary_search(&at).is_ok();
        let fine = there || consumed || (!promised && last.is_none_or(|last| at > last));
        hold("T7 lost", fine, || {
            let (name, fate) = (&found.record.name, entry.fate);
            format!("entry {at} of {name} ({fate:?}), last found is {last:?}")
        })?;
    }
    for sub in life
        .subs
        .iter()
        .filter(|sub| current && sub.durable && sub.answered)
    {
        let there = found.record.subscriptions.iter().any(|s| s.key == sub.key);
        hold("T7 subscription", there, || {
            format!("{}/{} was promised", found.record.name, sub.name)
        })?;
    }
    let mut left = Life {
        key: life.key,
        answered: true,
        serial: life.serial,
        opened_at: present.len(),
        stored: present.len(),
        known: present.len(),
        sequences: found.sequences.clone(),
        ..Life::default()
    };
    let policy = found.record.policy.clone().unwrap_or_default();
    let asked = life.policies.iter().any(|(asked, _)| *asked == policy);
    hold("T7 policy", asked || !current, || {
        format!("nobody asked {} for {policy:?}", found.record.name)
    })?;
    left.policies = vec![(policy, true)];
    let ends = found.record.terminated;
    let fine = if ends {
        life.end.takes_nothing() || life.end.failed
    } else {
        !life.end.answered
    };
    hold("T7 end", fine || !current, || {
        format!("{}: {ends}, {:?}", found.record.name, life.end)
    })?;
    left.end.answered = ends;
    for stored in &found.record.subscriptions {
        let known = life
            .subs
            .iter()
            .find(|sub| sub.durable && sub.key == stored.key);
        let mut sub = Sub::new(&stored.name, true, left.policy());
        (sub.key, sub.answered) = (stored.key, true);
        sub.cursor = cursor_of(found, stored.key, &present, &life.entries);
        if let Some(known) = known.filter(|_| current) {
            let promise = (keeps, ending.orderly);
            let as_known =
                |known: &Cursor| compare(&sub.cursor, known, (&present, &life.entries), promise);
            // A seek that was not answered may be there, and one that was lost with all else not.
            let former = known.former.iter().any(|former| as_known(former).is_ok());
            let sought = |seek: &Seek| is_at(&sub.cursor, &seek.start, &present);
            let another = former && !keeps || known.seeks.iter().any(sought);
            as_known(&known.cursor).or_else(|violation| {
                let what = format!("{} of {}/{}", violation.what, found.record.name, sub.name);
                let rule = violation.rule;
                if another {
                    Ok(())
                } else {
                    Err(Violation { rule, what })
                }
            })?;
        }
        left.subs.push(sub);
    }
    for (at, (&index, &position)) in present.iter().zip(&found.positions).enumerate() {
        let mut entry = life.entries[index].clone();
        entry.fate = Fate::Found;
        left.entries.push(entry);
        match left.ledgers.last_mut() {
            Some(run) if run.follows(position) => run.end = Some(at + 1),
            _ => left.ledgers.push(Ledger {
                ledger: position.ledger,
                entry: position.entry,
                first: at,
                end: Some(at + 1),
            }),
        }
    }
    Ok(left)
}

/// Which entries are there, by the positions found. Those of this life that were never answered come
/// last and in order, at positions nobody was told.
fn place(life: &mut Life, positions: &[Position]) -> Result<Vec<usize>, Violation> {
    let told = life.position(life.opened_at).is_some();
    let mut next = life.opened_at;
    let mut present = Vec::new();
    for &position in positions {
        let known = life.resolve(position);
        let index = known.or(Some(next).filter(|&next| !told && next < life.entries.len()));
        hold(
            "T7 phantom",
            index.is_some() && index > present.last().copied(),
            || format!("{position:?} was found, which is entry {index:?}, behind {present:?}"),
        )?;
        let Some(index) = index else { break };
        life.learn(index, position)?;
        present.push(index);
        next = next.max(index + 1);
    }
    Ok(present)
}

/// What recovery found of a cursor, with the entries that are there counted from 0.
fn cursor_of(found: &Found, key: u64, present: &[usize], entries: &[Entry]) -> Cursor {
    let mut cursor = Cursor::default();
    cursor.promised = FOUND;
    let state = found.cursors.iter().find(|cursor| cursor.0 == key);
    let Some((_, state)) = state else {
        return cursor;
    };
    for (at, (&index, &position)) in present.iter().zip(&found.positions).enumerate() {
        let part = state.partial.iter().find(|part| part.0 == position);
        let part = part.map(|(_, words)| both(&all_of(entries[index].messages), words));
        if is_acked(state, position) {
            cursor.set_acked(at, FOUND);
        } else if let Some(part) = part {
            cursor.set_part(at, FOUND, part);
        }
    }
    cursor
}

/// Nothing is acked that was not, and what was promised is.
fn compare(
    found: &Cursor,
    known: &Cursor,
    (present, entries): (&[usize], &[Entry]),
    (keeps, orderly): (bool, bool),
) -> Check {
    for (at, &index) in present.iter().enumerate() {
        let all = all_of(entries[index].messages);
        let what = || {
            format!(
                "entry {index}: {:?}, known {:?}",
                found.part(at),
                known.part(index)
            )
        };
        let least = |acked: bool, part: Option<&Still>| match part {
            _ if acked => Vec::new(),
            Some(part) => part.clone(),
            None => all.clone(),
        };
        let left = least(found.is_acked(at), found.part(at));
        let known_left = least(known.is_acked(index), known.part(index));
        hold("T7 never acked", covers(&left, &known_left), what)?;
        let promised_left = if orderly {
            known_left
        } else if known.ack_of(index) == FOUND || known.is_promised(index) && keeps {
            Vec::new()
        } else {
            least(false, known.promised_part(index, keeps))
        };
        hold("T7 ack lost", covers(&promised_left, &left), what)?;
    }
    Ok(())
}

/// Whether the cursor is where a seek was to put it.
fn is_at(found: &Cursor, start: &Start, present: &[usize]) -> bool {
    let before = (0..present.len())
        .take_while(|&at| found.is_acked(at))
        .count();
    let none_behind = (before..present.len()).all(|at| !found.is_acked(at));
    let first = present.get(before).copied();
    let last = before.checked_sub(1).map(|at| present[at]);
    // Between the last that is acked and the first that is not, of those that are there.
    let may = first.is_none_or(|first| first >= *start.may.start())
        && last.is_none_or(|last| last < *start.may.end());
    let at_start = first == Some(*start.may.start());
    let expected = start.part.as_ref().filter(|_| at_start);
    none_behind && may && found.part(before) == expected
}

/// Whether `left` has every message of `part`.
fn covers(left: &[u64], part: &[u64]) -> bool {
    let word = |at: usize| left.get(at).copied().unwrap_or(0);
    part.iter()
        .enumerate()
        .all(|(at, &part)| part & !word(at) == 0)
}

fn is_acked(cursor: &CursorState, position: Position) -> bool {
    cursor.mark_delete.is_some_and(|mark| position <= mark)
        || cursor.acked.iter().any(|&(first, count)| {
            first.ledger == position.ledger
                && (first.entry..first.entry + count).contains(&position.entry)
        })
}
