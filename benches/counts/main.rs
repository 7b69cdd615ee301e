//! Instruction counts of the hot path, one shape per bench, against `baseline.rs`.
//!
//! Blind to shared cache lines and to the kernel, but the same at every run and on every load, so
//! this may gate where wall time may not.

mod baseline;

use std::hint::black_box;

use gungraun::prelude::*;
use pelton_metrics::Histogram;

use crate::baseline::limit;

#[library_benchmark(config = limit("histogram_record_1000"))]
#[bench::run(Histogram::new(2))]
fn histogram_record_1000(mut histogram: Histogram) -> Histogram {
    for i in 0..1_000 {
        histogram.record(black_box(i * 1_000));
    }
    histogram
}

library_benchmark_group!(name = metrics, benchmarks = [histogram_record_1000]);
main!(library_benchmark_groups = metrics);
