//! How a ring is made: the ladder of flags, and the restrictions (runtime 1.2, 4.5).

use std::io;
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

/// A ring that was just closed gives its locked memory back a little later; so long is waited for
/// it, in steps of 1 ms.
const ENOMEM_TRIES: u32 = 1000;
/// The registrations that stay allowed once restrictions hold: eventfd, its opposite, probe,
/// iowq affinity, iowq workers, ring descriptor, its opposite, sync cancel.
const REGISTER_ALLOWED: [u8; 8] = [4, 5, 8, 17, 19, 20, 21, 24];

/// Step of the ladder of runtime 1.2, 1 (all flags) to 5 (the least).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step(pub(crate) u8);

/// Goes down the ladder: EINVAL means one step further, anything else is final.
pub(crate) fn ladder<R>(
    first: Step,
    mut build: impl FnMut(Step) -> io::Result<R>,
) -> io::Result<(R, Step)> {
    let mut step = Step(first.0.clamp(1, 5));
    loop {
        match build(step) {
            Ok(ring) => return Ok((ring, step)),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && step.0 < 5 => step.0 += 1,
            Err(error) => return Err(error),
        }
    }
}

/// The builder of one step of the ladder.
pub(crate) fn builder(step: Step, cq_entries: u32) -> io_uring::Builder {
    let mut builder = IoUring::builder();
    builder
        .setup_cqsize(cq_entries)
        .setup_submit_all()
        .dontfork();
    if step.0 <= 3 {
        builder.setup_single_issuer();
    }
    if step.0 <= 2 {
        builder.setup_defer_taskrun();
    } else if step.0 <= 4 {
        builder.setup_coop_taskrun();
    }
    if step.0 <= 4 {
        builder.setup_taskrun_flag();
    }
    if step.0 <= 1 {
        builder.setup_no_sqarray();
    }
    builder
}

/// Makes a ring of one step, restricted where the kernel lets us. ENOMEM is tried again for a
/// while: an engine that restarts asks before the old rings have given their memory back.
pub(crate) fn build_patiently(step: Step, entries: (u32, u32)) -> io::Result<(IoUring, bool)> {
    let mut tries = 0;
    loop {
        match build_ring(step, entries) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) && tries < ENOMEM_TRIES => {
                tries += 1;
                // The kernel announces the return of memory to nobody; this is at start only.
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other,
        }
    }
}

fn build_ring(step: Step, entries: (u32, u32)) -> io::Result<(IoUring, bool)> {
    let ring = builder(step, entries.1)
        .setup_r_disabled()
        .build(entries.0)?;
    let submitter = ring.submitter();
    let operations = [
        opcode::Nop::CODE,
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Fsync::CODE,
        opcode::AsyncCancel::CODE,
    ];
    let operations = operations.into_iter().map(Restriction::sqe_op);
    let registrations = REGISTER_ALLOWED.into_iter().map(Restriction::register_op);
    let mut restrictions: Vec<Restriction> = operations.chain(registrations).collect();
    // A refusal leaves a ring without restrictions, which works the same (runtime 4.5).
    let restricted = submitter.register_restrictions(&mut restrictions).is_ok();
    submitter.register_enable_rings()?;
    Ok((ring, restricted))
}
