//! Tests of whole shards: real threads, real rings, temporary directories.

mod harness;

mod engine;
mod idle;
mod inspect;
mod lanes;
mod mesh;
mod open;
mod stop;
