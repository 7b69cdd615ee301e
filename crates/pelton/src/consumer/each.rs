//! Receiving in place: entries are shown to a closure, one after the other.

use std::sync::Arc;

use super::Consumer;
use crate::delivery::{Entry, Source};
use crate::error::RecvError;
use crate::port::Data;
use crate::{Position, Verdict};

impl Consumer {
    /// Blocks until an entry arrives, then shows it and what else is there to `handle`, `max` at most,
    /// and acks or nacks each as `handle` says; says how many (1 or more, but 0 if `max` is 0).
    ///
    /// The cheapest way to receive: no counter is shared per entry, and acks of entries in
    /// a row go out as one. If `handle` panics, the entry it was shown is nacked and those before it are acked.
    ///
    /// # Errors
    /// As [`Consumer::recv`]; then `handle` was not called.
    pub fn for_each(
        &mut self,
        max: usize,
        handle: impl FnMut(Entry<'_>) -> Verdict,
    ) -> Result<usize, RecvError> {
        if max == 0 {
            return Ok(0);
        }
        self.wait_for_entry(None)?;
        Ok(self.show(max, handle))
    }

    /// As [`Consumer::for_each`], but never blocks: 0 while there is no entry.
    ///
    /// # Errors
    /// As [`Consumer::try_recv`]; then `handle` was not called.
    pub fn try_for_each(
        &mut self,
        max: usize,
        handle: impl FnMut(Entry<'_>) -> Verdict,
    ) -> Result<usize, RecvError> {
        if !self.has_entry() {
            // The end is looked at first: what was pushed before it is seen after it.
            let end = self.end();
            if !self.has_entry() {
                return end.map_or(Ok(0), Err);
            }
        }
        Ok(self.show(max, handle))
    }

    fn show(&mut self, max: usize, mut handle: impl FnMut(Entry<'_>) -> Verdict) -> usize {
        let mut verdicts = Verdicts {
            source: Arc::clone(&self.source),
            current: None,
            run: None,
        };
        let (mut count, mut resets) = (0, self.resets);
        while count < max && self.next_slot().is_some() {
            if self.resets != resets {
                verdicts.send_run();
                (verdicts.source, resets) = (Arc::clone(&self.source), self.resets);
            }
            let Some(run) = &self.current else { break };
            let (block, slot) = (&run.block, run.first_slot);
            let (meta, still) = (block.meta(slot), run.still.as_deref());
            let entry = Entry::new(
                (block.properties(slot), block.body(slot)),
                meta,
                run.redeliveries,
                still,
            );
            let messages = entry.message_count();
            self.shown = Some(messages);
            verdicts.current = Some(entry.position());
            let verdict = handle(entry);
            self.shown = None;
            verdicts.end(verdict);
            self.advance(messages);
            count += 1;
        }
        count
    }
}

/// Acks and nacks of [`Consumer::for_each`]: acks of consecutive entries travel as one item, and
/// whatever is left goes when it ends, panic included.
struct Verdicts {
    source: Arc<Source>,
    /// The entry that is being handled: nacked if nothing else is said of it.
    current: Option<Position>,
    /// Acked and not yet sent: the first entry, and how many.
    run: Option<(Position, u32)>,
}

impl Verdicts {
    fn end(&mut self, verdict: Verdict) {
        let Some(position) = self.current.take() else {
            return;
        };
        let consumer = self.source.id;
        match verdict {
            Verdict::Ack => {}
            Verdict::Nack => {
                self.send_run();
                return self.source.push(Data::Nack { consumer, position });
            }
            Verdict::Reject => {
                self.send_run();
                return self.source.push(Data::Reject { consumer, position });
            }
        }
        match &mut self.run {
            Some((first, entries)) if position.is_behind(*first, u64::from(*entries)) => {
                *entries += 1;
            }
            _ => {
                self.send_run();
                self.run = Some((position, 1));
            }
        }
    }

    fn send_run(&mut self) {
        if let Some((first, entries)) = self.run.take() {
            self.source.push(Data::AckRun {
                consumer: self.source.id,
                first,
                entries,
            });
        }
    }
}

impl Drop for Verdicts {
    fn drop(&mut self) {
        self.end(Verdict::Nack);
        self.send_run();
    }
}
