//! Which unit of load should move where, and why.
//!
//! A *shard* carries *units*, which move whole: topics on the cores of one process, or the same
//! thing on the machines of a cluster. Load is counted in *points*, one percent of one shard. Each
//! *round* every shard hands in a [`Report`]; [`plan`] gives the moves of that round, each with its
//! reason, and an event for every hot unit that no move can help.
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
