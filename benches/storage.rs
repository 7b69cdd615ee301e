//! The segment log without a disk: what it computes for an append, a commit, a run and a trim.
//!
//! The disk answers at once and keeps nothing, so the figures are the log's own: encoding,
//! checksums, index, tail memory.

mod disk;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};

use crate::disk::Shelf;

/// What is committed is there after the log is opened again, and in memory until it is consumed.
fn check() {
    for (body_bytes, entries) in [(0, 1), (64, 100), (4_096, 100), (100_000, 30)] {
        let mut shelf = Shelf::new(body_bytes, true);
        shelf.append(entries);
        shelf.commit();
        assert_eq!(shelf.reopened(), entries, "{body_bytes} bytes");
        let mut shelf = Shelf::new(body_bytes, true);
        shelf.append(entries);
        shelf.commit();
        assert_eq!(
            (shelf.consume(), shelf.consume()),
            (entries, 0),
            "{body_bytes} bytes"
        );
    }
}

fn commit(criterion: &mut Criterion) {
    check();
    let mut group = criterion.benchmark_group("append_commit_run_trim");
    for (body_bytes, entries) in [(64, 1), (64, 100), (256, 100), (4_096, 100)] {
        let mut shelf = Shelf::warm(body_bytes);
        group.throughput(Throughput::Elements(entries));
        group.bench_function(format!("{entries}_of_{body_bytes}b"), |bencher| {
            bencher.iter(|| {
                shelf.append(entries);
                shelf.commit();
                assert_eq!(shelf.consume(), entries);
            });
        });
    }
}

criterion_group!(benches, commit);
criterion_main!(benches);
