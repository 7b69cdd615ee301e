//! Which unit of load should move where, and why.
//!
//! A *shard* carries *units*, which move whole: topics on the cores of one process, or the same
//! thing on the machines of a cluster. Load is counted in *points*, one percent of one shard. Each
//! *round* every shard hands in a [`Report`]; [`plan`] gives the moves of that round, each with its
//! reason, and an event for every hot unit that no move can help.
//!
//! ```
//! use pelton_balance::{Outcome, Policy, Report, ShardId, State, UnitId, UnitLoad, plan};
//!
//! // Two shards at 60 and 0 points, the first with three topics of 20.
//! let unit = |unit| UnitLoad { unit: UnitId(unit), load: 20.0 };
//! let report = |shard, as_of, score, units| Report {
//!     shard: ShardId(shard), as_of, score, throughput: None, units,
//! };
//! let (policy, mut state) = (Policy::default(), State::default());
//! for round in 1..=2 {
//!     let reports = [
//!         report(0, round, 60.0, vec![unit(7), unit(8), unit(9)]),
//!         report(1, round, 0.0, Vec::new()),
//!     ];
//!     for planned in plan(&reports, round, &policy, &mut state).moves {
//!         println!("unit {} to shard {}: {}", planned.unit, planned.to, planned.reason);
//!         state.finish(&planned, round, Outcome::Done); // as soon as it is over
//!         assert_eq!((round, planned.unit), (2, UnitId(7)));
//!     }
//! }
//! ```
//!
//! Everything here is arithmetic on numbers handed in. There is no thread, clock, file or random
//! source, and nothing here carries a move out. The rules are part B of `priority_and_balance.md`,
//! and every number of its tables is a test (`tests/vectors.rs`).
#![forbid(unsafe_code)]

mod report;
mod sample;
mod window;

mod plan;
mod policy;
mod state;
mod view;

mod avg;
mod avg_pair_keyed;
mod history;
mod hits;
mod lcg;
mod multi_hit;
mod multi_hit_3;
mod overload;
mod pair_fill;
mod placement;
mod planner;
mod threshold;
mod transfer;
mod uniform;

pub mod simulate;

pub use plan::{HotUnit, Move, Plan, Reason, plan};
pub use policy::{
    AvgParams, MultiHit3Params, MultiHitParams, OverloadParams, PairFillParams, Policy, Strategy,
    ThresholdParams, TransferParams, UniformParams,
};
pub use report::{Report, Round, ShardId, UnitId, UnitLoad};
pub use sample::{MachineSample, MachineUnit, NetworkUse, ShardSample, ShardUnit};
pub use state::{Outcome, State};
pub use window::Window;
