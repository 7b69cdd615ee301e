//! Limits as a whole: a bucket against an exact model, and dispatchers on a virtual clock.

mod bucket;
mod cases;
mod scopes;
mod shards;
mod world;
