//! The ring: every step of the ladder, wake-ups, workers, shutdown (runtime tests 1, 3, 4, 9, 14).

use std::fs;
use std::io::{self, Write};
use std::time::Duration;

use io_uring::types::Timespec;
use io_uring::{IoUring, opcode};

use super::{World, create, on_every_driver, pattern, read, ring_plan, task};
use crate::fault::{Faults, Random};
use crate::ladder::{Step, builder, ladder};
use crate::{Clock, CpuSet, FileId, Fill, Op, Poller, cpus_allowed, pin};

/// Runtime test 4: a builder that answers EINVAL to the first steps lands on the next one.
#[test]
fn the_ladder_goes_down_one_step_for_each_einval() {
    for refused in 0..5 {
        let mut asked = Vec::new();
        let landed = ladder(Step(1), |step| {
            asked.push(step.0);
            if step.0 <= refused {
                Err(io::Error::from_raw_os_error(libc::EINVAL))
            } else {
                Ok(())
            }
        });
        assert_eq!(landed.expect("a step").1, Step(refused + 1));
        assert!(asked.into_iter().eq(1..=refused + 1));
    }
    let einval = ladder(Step(1), |_| {
        Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL))
    });
    assert_eq!(
        einval.expect_err("below the ladder").raw_os_error(),
        Some(libc::EINVAL)
    );
    let mut tries = 0;
    let eperm = ladder(Step(1), |_| {
        tries += 1;
        Err::<(), _>(io::Error::from_raw_os_error(libc::EPERM))
    });
    assert_eq!(
        (eperm.expect_err("forbidden").raw_os_error(), tries),
        (Some(libc::EPERM), 1)
    );
}

/// Runtime tests 1 and 4: at every step, what is read cached, O_DIRECT, and from a pipe that is
/// written while the shard sleeps ends the sleep within 300 ms.
#[test]
fn at_every_step_of_the_ladder_every_completion_ends_the_sleep() {
    let Some(plan) = ring_plan() else { return };
    let clock = Clock::new();
    for step in 1..=5 {
        let mut world = World::new(&plan.clone().from_step(step), "ring");
        assert!(
            world.disk.report().step >= Some(step),
            "{}",
            world.disk.report()
        );
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        let (pipe, mut writer) = fifo(&mut world, 2);
        for round in 0..30_u64 {
            for direct in [false, true] {
                let start = clock.now_ns();
                let done = world.one(read(1, round * 4096, 4096, direct));
                assert_eq!(done.result.expect("a read"), 4096);
                assert!(
                    clock.now_ns() - start < 300_000_000,
                    "step {step}, direct {direct}"
                );
            }
            world.submit(round, read(2, 0, 1, false));
            world.disk.enter();
            let start = clock.now_ns();
            let write = crate::spawn_named("pipe", move || {
                writer.write_all(&[7]).expect("a written pipe");
                writer
            });
            let done = world.finish(1).pop().expect("one");
            assert_eq!(done.memory.expect("the memory").as_slice(), [7]);
            assert!(clock.now_ns() - start < 300_000_000, "step {step}, pipe");
            writer = write.expect("a thread").join().expect("no panic");
        }
        drop(pipe);
    }
}

/// Runtime test 1, the last column: a time-out of the ring wakes through the eventfd too.
#[test]
fn at_every_step_of_the_ladder_a_ring_timeout_ends_the_sleep() {
    if ring_plan().is_none() {
        return;
    }
    for step in 1..=5 {
        let mut poller = Poller::new().expect("a poller");
        let mut ring = builder(Step(step), 1024).build(256).expect("a ring");
        ring.submitter()
            .register_eventfd(poller.notifier().raw_fd())
            .expect("an eventfd");
        for _ in 0..5 {
            let after = Timespec::new().nsec(2_000_000);
            let timeout = opcode::Timeout::new(&raw const after).build();
            // SAFETY: `after` lives until the completion, awaited below.
            unsafe { ring.submission().push(&timeout) }.expect("room");
            ring.submit().expect("submitted");
            // A wake may come for the timer and for the work it leaves: the second finds nothing.
            let done = loop {
                let woken = poller.wait(Some(300_000_000)).expect("a wait");
                // At step 3 it is a signal that interrupts the sleep (runtime 1.2).
                assert!(!woken.timed_out, "step {step}: no wake within 300 ms");
                ring.submit().expect("work run");
                if let Some(done) = ring.completion().next() {
                    break done;
                }
            };
            assert_eq!(done.result(), -libc::ETIME);
        }
    }
}

/// Runtime test 3: an enter runs at most 20 pieces of deferred work.
#[test]
fn fifty_timers_due_at_once_take_three_enters() {
    if ring_plan().is_none() {
        return;
    }
    let mut poller = Poller::new().expect("a poller");
    let mut ring = builder(Step(1), 1024).build(256).expect("a ring");
    let after = Timespec::new().nsec(1_000_000);
    for _ in 0..50 {
        let timeout = opcode::Timeout::new(&raw const after).build();
        // SAFETY: `after` lives until the completions, counted below.
        unsafe { ring.submission().push(&timeout) }.expect("room");
    }
    ring.submit().expect("submitted");
    // All are due before the first enter after the sleep.
    poller.wait(Some(20_000_000)).expect("a wait");
    let (mut enters, mut done) = (0, 0);
    while done < 50 {
        ring.submit().expect("work run");
        enters += 1;
        done += ring.completion().count();
        assert!(enters <= 50, "{done} of 50 after {enters} enters");
    }
    assert!(enters <= 3, "{enters} enters");
}

/// Runtime test 3: 100 operations through 16 places come back complete and in order.
#[test]
fn a_hundred_nops_through_sixteen_places_all_come_back() {
    if ring_plan().is_none() {
        return;
    }
    let mut ring: IoUring = builder(Step(1), 16).build(8).expect("a ring");
    let mut seen = Vec::new();
    let mut overflowed = false;
    for tag in 0..100 {
        let nop = opcode::Nop::new().build().user_data(tag);
        // SAFETY: a NOP points to no memory.
        unsafe { ring.submission().push(&nop) }.expect("room");
        ring.submit().expect("submitted");
    }
    while seen.len() < 100 {
        overflowed |= ring.submission().cq_overflow();
        let before = seen.len();
        seen.extend(ring.completion().map(|done| done.user_data()));
        ring.submit().expect("flushed");
        assert!(seen.len() > before, "stuck at {before}");
    }
    assert!(seen.into_iter().eq(0..100));
    assert!(overflowed, "16 places held 100 completions");
}

/// Runtime 4.5: the ring takes its six opcodes and no other.
#[test]
fn a_restricted_ring_refuses_other_opcodes() {
    let Some(plan) = ring_plan() else { return };
    let poller = Poller::new().expect("a poller");
    let mut uring =
        crate::uring::Uring::new(&plan.uring_options(), &poller.notifier()).expect("a ring");
    if !uring.restricted() {
        eprintln!("skipped: this kernel takes no restrictions");
        return;
    }
    let fd = io_uring::types::Fd(poller.notifier().raw_fd());
    let forbidden = opcode::PollAdd::new(fd, 1).build().user_data(1);
    // SAFETY: neither entry points to memory.
    assert!(unsafe { uring.push(&forbidden) });
    uring.flush(1);
    let mut taken = [(0, 0); 4];
    assert_eq!(uring.take(&mut taken), 1);
    assert_eq!(taken[0], (1, -libc::EACCES));
}

/// Runtime test 14: the worker has the process's mask, not the shard's one CPU, and is alone.
#[test]
fn workers_run_on_all_cpus_of_the_process_and_are_few() {
    let Some(plan) = ring_plan() else { return };
    let allowed = *cpus_allowed();
    let shard = crate::spawn_named("shard", move || {
        pin(allowed.iter().next().expect("a CPU")).expect("pinned");
        let mut world = World::new(&plan, "ring");
        world.file(1, &pattern(4096), true);
        for user in 0..64 {
            world
                .disk
                .write_at(FileId(1), user * 4096, &[1; 4096])
                .expect("dirty pages");
            world.submit(user, Op::Sync { file: FileId(1) });
        }
        world.finish(64);
        // SAFETY: gettid takes nothing and touches no memory of ours.
        (
            workers_of(unsafe { libc::gettid() }),
            CpuSet::of_this_thread().expect("a mask").len(),
        )
    });
    let (workers, cpus_of_shard) = shard.expect("a thread").join().expect("no panic");
    assert_eq!(cpus_of_shard, 1);
    assert_eq!(workers, [allowed.to_string()]);
}

/// The masks of the ring's workers that the thread has.
fn workers_of(thread: libc::pid_t) -> Vec<String> {
    let name = format!("iou-wrk-{thread}");
    let tasks = fs::read_dir("/proc/self/task").expect("the process's threads");
    let masks = tasks.flatten().filter_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        (field("Name:")?.trim() == name)
            .then(|| field("Cpus_allowed_list:").unwrap_or("").trim().to_owned())
    });
    masks.collect()
}

/// Runtime test 9: whatever is in flight at a shutdown ends, once, and nothing is leaked.
#[test]
fn a_shutdown_at_any_point_ends_everything() {
    on_every_driver(|mut world| {
        let ring = world.name != "pread";
        let bytes = pattern(1 << 20);
        for seed in 0..30 {
            let mut random = Random(seed);
            let poller = Poller::new().expect("a poller");
            let pool = crate::IoPool::new(2).expect("a pool");
            world.disk =
                crate::Disk::open(&plan_of(&world), &pool, &poller.notifier()).expect("a disk");
            world.poller = poller;
            world.file(1, &bytes, true);
            let pipe = ring.then(|| fifo(&mut world, 2));
            let (count, reap_at) = (1 + random.below(150), random.below(150));
            let mut ended = 0;
            for user in 0..count {
                let op = match random.below(10) {
                    0 => Op::Sync { file: FileId(1) },
                    1 if pipe.is_some() => read(2, 0, 8, false),
                    2 => {
                        let path = world.dir.path().join(format!("new-{seed}-{user}"));
                        task(create(
                            &path,
                            1 << 20,
                            Fill::Zeros {
                                bytes_per_s: 1 << 20,
                            },
                        ))
                    }
                    _ => read(1, random.below(200) as u64 * 4096, 65_536, true),
                };
                world.submit(user as u64, op);
                if user == reap_at {
                    ended += world.disk.reap(8, drop);
                }
            }
            world.disk.close_file(FileId(1));
            let end = world.disk.shutdown(Duration::from_secs(5), drop);
            assert_eq!(end.leaked, 0, "{}, seed {seed}", world.name);
            assert_eq!(ended + end.completed, count, "{}, seed {seed}", world.name);
            assert_eq!(world.disk.in_flight(), 0);
            assert!(
                world.disk.submit(0, read(1, 0, 512, false)).is_err(),
                "taken after the end"
            );
        }
        // Files of creates that were called off are gone; finished ones are whole.
        for entry in fs::read_dir(world.dir.path())
            .expect("the folder")
            .flatten()
        {
            if entry.file_name().to_string_lossy().starts_with("new-") {
                assert_eq!(entry.metadata().expect("its size").len(), 1 << 20);
            }
        }
    });
}

fn plan_of(world: &World) -> crate::DiskPlan {
    let mut plans = super::plans().into_iter();
    plans
        .find(|(name, _)| *name == world.name)
        .expect("the world's plan")
        .1
}

/// Runtime test 9: what never ends is leaked on purpose, after the time given.
#[test]
fn an_operation_that_never_ends_is_leaked_with_its_memory() {
    on_every_driver(|mut world| {
        world.file(1, &pattern(4096), true);
        let mut faults = Faults::new(1);
        faults.stuck = true;
        world.disk.faults = Some(faults);
        for user in 0..3 {
            world.submit(user, read(1, 0, 4096, true));
        }
        let end = world.disk.shutdown(Duration::from_millis(50), drop);
        assert_eq!((end.completed, end.leaked), (0, 3), "{}", world.name);
        assert_eq!(world.disk.in_flight(), 0);
    });
}

/// A pipe with a name, opened as file `file`; its path, and an end to write.
fn fifo(world: &mut World, file: u64) -> (std::path::PathBuf, fs::File) {
    let path = world.dir.path().join(format!("pipe-{file}"));
    let name = crate::file::c_path(&path).expect("a path");
    // SAFETY: the path is a C string that outlives the call.
    let made = unsafe { libc::mkfifo(name.as_ptr(), 0o600) };
    assert!(made == 0 || path.exists());
    world.open(file, &path, false);
    let writer = fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("the other end");
    (path, writer)
}
