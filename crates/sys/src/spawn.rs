//! Threads with a name: `perf`, `top` and core dumps show who does what.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread called `name` (the kernel keeps the first 15 bytes).
///
/// # Errors
/// Why the kernel gives no thread.
pub fn spawn_named<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    Builder::new().name(name.to_owned()).spawn(body)
}
