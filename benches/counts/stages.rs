//! Recording a duration.

use std::hint::black_box;

use gungraun::prelude::*;
use pelton_metrics::{Stage, StageSet};

use crate::baseline::limit;

// The nine stages of 1,000 messages from memory: three of them take any time.
#[library_benchmark(config = limit("record_9_stages_1000"))]
#[bench::run(StageSet::new(2))]
fn record_9_stages_1000(mut stages: StageSet) -> StageSet {
    for i in 0..1_000_u64 {
        for stage in Stage::ALL {
            let spent_ns = match stage {
                Stage::Received | Stage::HandedOver | Stage::Acked => i * 1_000 + 1,
                _ => 0,
            };
            stages.record(stage, black_box(spent_ns));
        }
    }
    stages
}

library_benchmark_group!(name = stage_group, benchmarks = [record_9_stages_1000]);
