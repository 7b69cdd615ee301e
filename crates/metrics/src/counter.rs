//! Every counter of a shard, in one table.

/// What a counter counts, which decides how it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things; printed as they are.
    Count,
    /// Nanoseconds; printed in seconds, to the last digit.
    Nanos,
}

/// Name, unit, label and help of a counter, one line each. Counters of one name stand together: a
/// page announces a name once.
macro_rules! counters {
    ($($id:ident = $name:literal, $unit:ident, $label:expr, $help:literal;)+) => {
        /// A counter of a shard. The list is closed: what is counted is what stands here.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Counter {
            $(#[doc = $help] $id,)+
        }

        const TABLE: &[Row] = &[
            $(Row { name: $name, unit: Unit::$unit, label: $label, help: $help },)+
        ];

        impl Counter {
            /// All counters in the order of the table.
            pub const ALL: &[Counter] = &[$(Counter::$id,)+];
        }
    };
}

struct Row {
    name: &'static str,
    unit: Unit,
    label: Option<(&'static str, &'static str)>,
    help: &'static str,
}

counters! {
    // Published.
    EntriesIn = "pelton_entries_in_total", Count, None, "Entries appended.";
    MessagesIn = "pelton_messages_in_total", Count, None, "Messages in the appended entries.";
    BytesIn = "pelton_bytes_in_total", Count, None, "Bytes of the appended entries' bodies.";
    ReceiptsSent = "pelton_receipts_total", Count, None, "Entries whose producer was told that they are stored.";
    RefusedTooLarge = "pelton_publish_refused_total", Count, Some(("reason", "too_large")), "Entries refused, by reason.";
    RefusedDiskFull = "pelton_publish_refused_total", Count, Some(("reason", "disk_full")), "Entries refused, by reason.";
    RefusedPoisoned = "pelton_publish_refused_total", Count, Some(("reason", "log_poisoned")), "Entries refused, by reason.";
    RefusedClosed = "pelton_publish_refused_total", Count, Some(("reason", "closed")), "Entries refused, by reason.";
    RefusedTerminated = "pelton_publish_refused_total", Count, Some(("reason", "terminated")), "Entries refused, by reason.";
    RefusedFenced = "pelton_publish_refused_total", Count, Some(("reason", "fenced")), "Entries refused, by reason.";
    RefusedDelay = "pelton_publish_refused_total", Count, Some(("reason", "delay")), "Entries refused, by reason.";
    RefusedBacklog = "pelton_publish_refused_total", Count, Some(("reason", "backlog_quota")), "Entries refused, by reason.";
    HeldNoRoom = "pelton_publish_held_total", Count, Some(("reason", "no_room")), "Times a producer's ring was left alone, by reason.";

    // Dispatched.
    EntriesOut = "pelton_entries_out_total", Count, None, "Entries handed to consumers.";
    MessagesOut = "pelton_messages_out_total", Count, None, "Messages handed to consumers.";

    // The turn loop.
    Turns = "pelton_turns_total", Count, None, "Turns that did something.";
    BusyNs = "pelton_busy_seconds_total", Nanos, None, "Time spent in turns that did something.";
    LongTurns = "pelton_long_turns_total", Count, None, "Turns longer than the threshold; each leaves a record.";
    ItemsControl = "pelton_lane_items_total", Count, Some(("lane", "control")), "Items taken from a lane.";
    ItemsData = "pelton_lane_items_total", Count, Some(("lane", "data")), "Items taken from a lane.";
    MeshFullControl = "pelton_mesh_full_total", Count, Some(("lane", "control")), "Items another shard's ring had no room for.";
    MeshFullData = "pelton_mesh_full_total", Count, Some(("lane", "data")), "Items another shard's ring had no room for.";
    ClaimedUnpublishedNs = "pelton_claimed_unpublished_seconds_total", Nanos, None, "Time a lane stood behind a slot that was claimed and not published.";
    SpinNs = "pelton_spin_seconds_total", Nanos, None, "Time spent spinning before sleep.";
    Sleeps = "pelton_sleeps_total", Count, None, "Times the shard went to sleep.";
    Wakes = "pelton_wakes_total", Count, None, "Sleeps that a notification ended.";
    WakesUseless = "pelton_wakes_useless_total", Count, None, "Of these, the ones that found no work.";
    WakesSent = "pelton_wakes_sent_total", Count, None, "Sleepers this shard woke.";
    Rescues = "pelton_rescues_total", Count, None, "Time-outs that found work nobody announced; must stay 0.";

    // The disk.
    Commits = "pelton_commits_total", Count, None, "Commit blocks written, seals and marks included.";
    BytesWritten = "pelton_disk_written_bytes_total", Count, None, "Bytes written to segments, headers and padding included.";
    BytesRead = "pelton_disk_read_bytes_total", Count, None, "Bytes read from segments.";
    DiskWrites = "pelton_disk_operations_total", Count, Some(("kind", "write")), "Disk operations, by kind.";
    DiskSyncs = "pelton_disk_operations_total", Count, Some(("kind", "sync")), "Disk operations, by kind.";
    DiskReads = "pelton_disk_operations_total", Count, Some(("kind", "read")), "Disk operations, by kind.";
    DiskTasks = "pelton_disk_operations_total", Count, Some(("kind", "task")), "Disk operations, by kind.";
    DiskErrors = "pelton_disk_errors_total", Count, None, "Disk operations that failed.";
    StaleCompletions = "pelton_stale_completions_total", Count, Some(("reason", "generation")), "Completions that nobody waited for any more, by reason.";
    ShortTransfers = "pelton_disk_short_transfers_total", Count, None, "Reads and writes that moved less than asked and went on.";
    ReadsOfOpenSegment = "pelton_reads_active_segment_total", Count, None, "Reads of the open segment; above 0 the tail memory is too small.";
    SegmentsRecycled = "pelton_segments_total", Count, Some(("origin", "recycled")), "Segments ready for use, by origin.";
    SegmentsMade = "pelton_segments_total", Count, Some(("origin", "made")), "Segments ready for use, by origin.";
    SegmentsAllocated = "pelton_segments_allocated_total", Count, None, "Segments allocated in a hurry, because none was ready.";
    SegmentsUnlinked = "pelton_segments_unlinked_total", Count, None, "Consumed segments unlinked.";
    ReadsRepeated = "pelton_disk_reads_repeated_total", Count, None, "Reads of entries that failed and were tried again.";
    EntriesUnreadable = "pelton_entries_unreadable_total", Count, None, "Entries whose reads all failed; their neighbours are served.";
    Enters = "pelton_io_uring_enter_total", Count, None, "Calls of io_uring_enter.";
    RingOverflows = "pelton_io_uring_overflow_total", Count, None, "Completions that did not fit the ring; above 0 is a bug.";
}

impl Counter {
    /// The name on the Prometheus page.
    #[must_use]
    pub fn name(self) -> &'static str {
        TABLE[self as usize].name
    }

    /// The label that tells counters of one name apart.
    #[must_use]
    pub fn label(self) -> Option<(&'static str, &'static str)> {
        TABLE[self as usize].label
    }

    /// One sentence for whoever reads the page.
    #[must_use]
    pub fn help(self) -> &'static str {
        TABLE[self as usize].help
    }

    /// The unit of the value.
    #[must_use]
    pub fn unit(self) -> Unit {
        TABLE[self as usize].unit
    }
}

/// The values of all counters of one shard, plain integers with one writer.
///
/// A value only rises and has 64 bits. At `u64::MAX` it **saturates**: it stays there and never wraps,
/// so a difference is never negative. Text shows every digit; a reader of JSON that keeps numbers as
/// doubles loses the last digits above 2^53 and should take them from the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    values: [u64; TABLE.len()],
}

impl Counters {
    /// All zero.
    #[must_use]
    pub const fn new() -> Counters {
        Counters {
            values: [0; TABLE.len()],
        }
    }

    /// Adds `n`; saturates at `u64::MAX`.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.values[counter as usize];
        *value = value.saturating_add(n);
    }

    /// Adds one; saturates at `u64::MAX`.
    #[inline]
    pub fn increment(&mut self, counter: Counter) {
        self.add(counter, 1);
    }

    /// The value.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Every counter in the order of the table with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL
            .iter()
            .copied()
            .zip(self.values.iter().copied())
    }

    /// Adds every value of `other`; saturates.
    pub fn merge(&mut self, other: &Counters) {
        for (counter, value) in other.iter() {
            self.add(counter, value);
        }
    }

    /// What was added since `earlier`, an older copy of the same counters; never negative. Divided by
    /// the time between the two it is a rate.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        let mut difference = Counters::new();
        for (counter, value) in self.iter() {
            difference.add(counter, value.saturating_sub(earlier.get(counter)));
        }
        difference
    }
}

impl Default for Counters {
    fn default() -> Counters {
        Counters::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardMetrics, shard_page};

    const SEEDS: [u64; 4] = [(1 << 31) - 10, (1 << 32) - 10, (1 << 53) - 10, u64::MAX - 9];

    /// COUNTER-32BIT: 64 bits everywhere, saturating at the end, in JSON as in Prometheus text.
    #[test]
    fn counter_32bit_no_value_is_ever_printed_negative_or_rounded() {
        for seed in SEEDS {
            for counter in [
                Counter::MessagesIn,
                Counter::BytesIn,
                Counter::RefusedTooLarge,
            ] {
                let mut shard = ShardMetrics::new();
                shard.counters.add(counter, seed);
                let before = shard.counters.clone();
                shard.counters.add(counter, 20);
                let expected = seed.saturating_add(20);
                assert_eq!(shard.counters.get(counter), expected);
                assert!(expected > seed, "monotonic");

                let json = serde_json::json!({ "value": shard.counters.get(counter) }).to_string();
                assert_eq!(json, format!("{{\"value\":{expected}}}"));
                let read: serde_json::Value = serde_json::from_str(&json).unwrap();
                assert_eq!(read["value"].as_u64(), Some(expected));

                let page = shard_page(&[(0, &shard)]);
                let line = page
                    .lines()
                    .find(|l| l.starts_with(counter.name()) && !l.ends_with(" 0"))
                    .unwrap();
                assert!(line.ends_with(&format!(" {expected}")), "{line}");
                assert!(!page.contains(" -"), "nothing on the page is negative");
                assert_eq!(shard.counters.since(&before).get(counter), expected - seed);
            }
        }
    }

    /// COUNTER-32BIT: the stated rule at 2^64 holds for every counter and every way to add.
    #[test]
    fn counter_32bit_every_counter_saturates_and_its_rate_is_zero_then() {
        let mut counters = Counters::new();
        Counter::ALL
            .iter()
            .for_each(|&counter| counters.add(counter, u64::MAX - 1));
        Counter::ALL
            .iter()
            .for_each(|&counter| counters.increment(counter));
        let full = counters.clone();
        Counter::ALL
            .iter()
            .for_each(|&counter| counters.increment(counter));
        counters.merge(&full);
        assert!(counters.iter().all(|(_, value)| value == u64::MAX));
        assert!(counters.since(&full).iter().all(|(_, value)| value == 0));
        // Copies in the wrong order (a restart in between) give no negative rate either.
        assert!(
            Counters::new()
                .since(&full)
                .iter()
                .all(|(_, value)| value == 0)
        );
    }

    #[test]
    fn a_nanosecond_counter_is_printed_in_seconds_without_rounding() {
        let mut shard = ShardMetrics::new();
        shard.counters.add(Counter::BusyNs, u64::MAX);
        let page = shard_page(&[(3, &shard)]);
        assert!(page.contains("pelton_busy_seconds_total{shard=\"3\"} 18446744073.709551615\n"));
    }

    #[test]
    fn the_table_keeps_counters_of_one_name_together_and_every_series_apart() {
        let mut names: Vec<&str> = Vec::new();
        let mut series = Vec::new();
        for &counter in Counter::ALL {
            assert!(counter.name().starts_with("pelton_") && counter.name().ends_with("_total"));
            assert_eq!(
                counter.name().contains("_seconds_"),
                counter.unit() == Unit::Nanos
            );
            assert!(counter.help().ends_with('.'));
            series.push((counter.name(), counter.label()));
            if names.last() == Some(&counter.name()) {
                let first = Counter::ALL
                    .iter()
                    .find(|c| c.name() == counter.name())
                    .unwrap();
                assert_eq!(first.help(), counter.help(), "one help for one name");
            } else {
                assert!(
                    !names.contains(&counter.name()),
                    "{} stands twice",
                    counter.name()
                );
                names.push(counter.name());
            }
        }
        series.sort_unstable();
        series.dedup();
        assert_eq!(series.len(), Counter::ALL.len());
    }
}
