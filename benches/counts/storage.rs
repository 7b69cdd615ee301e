//! The segment log without a disk: entries of one message and 64 bytes, from append to trim.

use gungraun::prelude::*;

use crate::{baseline::limit, disk::Shelf};

fn committed() -> Shelf {
    let mut shelf = Shelf::new(64, true);
    shelf.append(250);
    shelf.commit();
    assert_eq!(shelf.reopened(), 250);
    Shelf::warm(64)
}

#[library_benchmark(config = limit("commit_1"))]
#[bench::run(committed())]
fn commit_1(mut shelf: Shelf) -> Shelf {
    shelf.append(1);
    shelf.commit();
    assert_eq!(shelf.consume(), 1);
    shelf
}

#[library_benchmark(config = limit("commit_100"))]
#[bench::run(committed())]
fn commit_100(mut shelf: Shelf) -> Shelf {
    shelf.append(100);
    shelf.commit();
    assert_eq!(shelf.consume(), 100);
    shelf
}

library_benchmark_group!(name = storage_group, benchmarks = [commit_1, commit_100]);
