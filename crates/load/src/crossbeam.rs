//! The yardstick for throughput: the same hops, threads, burst and message size over two bounded
//! channels of crossbeam, and nothing else done with a message.

use std::{hint::spin_loop, thread};

use crossbeam_channel::{Receiver, Sender, TryRecvError, TrySendError, bounded};

use crate::{
    embedded::{BURST, Clock},
    payload::{HEADER_BYTES, Header},
};

/// Slots of each channel; a producer's ring has as many.
pub(crate) const CAPACITY: usize = 1_024;

/// Looks between two offers of the CPU, as many as the channel's own blocking receive takes.
const SPINS: u32 = 128;

/// Messages per second that go from this thread to a second one and back, for `for_ns`.
///
/// # Panics
/// If a message is lost or reordered, or if the second thread cannot be made.
#[must_use]
pub(crate) fn pipeline_per_s(clock: &Clock, message_bytes: usize, for_ns: u64) -> f64 {
    // By value as far as that is sensible: what a user of a channel would do with small messages.
    match message_bytes {
        ..=32 => pipeline(clock, [0_u8; 32], for_ns),
        33..=64 => pipeline(clock, [0_u8; 64], for_ns),
        65..=128 => pipeline(clock, [0_u8; 128], for_ns),
        129..=256 => pipeline(clock, [0_u8; 256], for_ns),
        257..=512 => pipeline(clock, [0_u8; 512], for_ns),
        513..=1_024 => pipeline(clock, [0_u8; 1_024], for_ns),
        1_025..=4_096 => pipeline(clock, [0_u8; 4_096], for_ns),
        more => pipeline(clock, vec![0_u8; more], for_ns),
    }
}

fn pipeline<M>(clock: &Clock, message: M, for_ns: u64) -> f64
where
    M: AsMut<[u8]> + AsRef<[u8]> + Clone + Send,
{
    let (to_middle, from_client) = bounded::<M>(CAPACITY);
    let (to_client, from_middle) = bounded::<M>(CAPACITY);
    thread::scope(|scope| {
        thread::Builder::new()
            .name("pelton-load-mid".into())
            .spawn_scoped(scope, move || forward(&from_client, &to_client))
            .expect("a thread for the yardstick");
        client(clock, message, to_middle, &from_middle, for_ns)
    })
}

/// What the shard thread is to the engine: takes one, passes it on, spins when there is none.
fn forward<M>(from_client: &Receiver<M>, to_client: &Sender<M>) {
    let mut looks = 0;
    loop {
        match from_client.try_recv() {
            Ok(message) => {
                looks = 0;
                let mut waiting = message;
                while let Err(TrySendError::Full(back)) = to_client.try_send(waiting) {
                    waiting = back;
                    wait(&mut looks);
                }
            }
            Err(TryRecvError::Empty) => wait(&mut looks),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

/// Spins, then offers the CPU: where a third thread wants it, a spinning pair would starve itself.
fn wait(looks: &mut u32) {
    *looks += 1;
    if looks.is_multiple_of(SPINS) {
        thread::yield_now();
    } else {
        spin_loop();
    }
}

fn client<M>(
    clock: &Clock,
    message: M,
    to_middle: Sender<M>,
    from_middle: &Receiver<M>,
    for_ns: u64,
) -> f64
where
    M: AsMut<[u8]> + AsRef<[u8]> + Clone,
{
    let start_ns = clock.now_ns();
    let (mut sent, mut received) = (0_u64, 0_u64);
    let mut looks = 0;
    loop {
        let before = sent + received;
        let now_ns = clock.now_ns();
        let over = now_ns - start_ns >= for_ns;
        if over && received == sent {
            break;
        }
        for _ in 0..if over { 0 } else { BURST } {
            let mut next = message.clone();
            let header = Header {
                producer: 0,
                key: 0,
                sequence: sent,
                intended_ns: now_ns,
            };
            header.write(&mut next.as_mut()[..HEADER_BYTES]);
            if to_middle.try_send(next).is_err() {
                break;
            }
            sent += 1;
        }
        for _ in 0..BURST {
            let Ok(back) = from_middle.try_recv() else {
                break;
            };
            let header = Header::read(back.as_ref()).expect("as long as it was sent");
            assert_eq!(header.sequence, received, "a channel keeps the order");
            received += 1;
        }
        match sent + received > before {
            true => looks = 0,
            false => wait(&mut looks),
        }
    }
    let seconds = (clock.now_ns() - start_ns) as f64 / 1e9;
    drop(to_middle);
    received as f64 / seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_yardstick_moves_messages_of_any_size_in_order() {
        let clock = Clock::new();
        for bytes in [24, 64, 65, 4_096, 10_000] {
            assert!(pipeline_per_s(&clock, bytes, 2_000_000) > 0.0, "{bytes}");
        }
    }
}
