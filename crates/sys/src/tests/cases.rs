//! The cases of io_uring, each under its id, and the faults of runtime tests 8 and 9.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{World, on_every_driver, pattern, read, ring_plan, task};
use crate::fault::{Fault, Faults, Random, script_enters, script_writes};
use crate::{
    Access, FileId, FileTask, IoFault, IoMode, Memory, Op, Poller, SegmentFile, zero_range,
};

const LEN: usize = 64 << 10;

/// Reads 64 KiB while the kernel answers as told; then what a plain read gives, or the fault.
fn check_read(script: &[Fault], direct: bool, expected: Result<(), IoFault>) {
    on_every_driver(|mut world| {
        let bytes = pattern(LEN);
        world.file(1, &bytes, true);
        world.disk.faults = Some(Faults::scripted(script.iter().copied()));
        let done = world.one(read(1, 0, LEN, direct));
        let what = format!("{}, direct {direct}, {script:?}", world.name);
        let memory = done.memory.expect("the memory");
        match (done.result, expected) {
            (Ok(got), Ok(())) => {
                assert_eq!(got, LEN, "{what}");
                assert!(memory.as_slice() == bytes, "{what}: other bytes");
            }
            (Err(error), Err(fault)) => assert_eq!(IoFault::of(&error), Some(fault), "{what}"),
            (result, _) => panic!("{what}: {result:?}, not {expected:?}"),
        }
        let stats = world.disk.stats();
        assert!(
            expected.is_err() || stats.short_transfers_total + stats.retries_total > 0,
            "{what}"
        );
    });
}

#[test]
fn uring_short_write_eintr_reads_go_on_where_they_stopped() {
    use Fault::{Errno, Short};
    let odd = [
        Short(LEN / 2),
        Short(1),
        Short(700),
        Errno(libc::EINTR),
        Errno(libc::EAGAIN),
    ];
    for direct in [false, true] {
        check_read(&odd, direct, Ok(()));
        check_read(&[Errno(libc::EINTR); 8], direct, Ok(()));
        check_read(&[Errno(libc::EAGAIN); 9], direct, Err(IoFault::Busy));
        // A step forward starts the count of tries anew.
        let mut twice = vec![Errno(libc::EAGAIN); 8];
        twice.push(Short(4096));
        twice.extend([Errno(libc::EINTR); 8]);
        check_read(&twice, direct, Ok(()));
    }
    // 0 is the end of the file, and no loop; for O_DIRECT the page cache has the last word.
    let truncated = IoFault::Truncated {
        got: 100,
        wanted: LEN,
    };
    check_read(&[Short(100), Short(0)], false, Err(truncated));
    check_read(&[Short(0), Short(4096)], true, Ok(()));
    // A file system that takes O_DIRECT at open and refuses the read (runtime 2.3).
    check_read(&[Errno(libc::EINVAL)], true, Ok(()));
    check_read(
        &[Errno(libc::EINVAL), Errno(libc::EOPNOTSUPP)],
        true,
        Ok(()),
    );
}

#[test]
fn uring_short_write_eintr_short_at_every_length() {
    on_every_driver(|mut world| {
        let bytes = pattern(8192);
        world.file(1, &bytes, true);
        for direct in [false, true] {
            for short in (1..8192).step_by(61) {
                world.disk.faults = Some(Faults::scripted([Fault::Short(short)]));
                let done = world.one(read(1, 0, 8192, direct));
                assert_eq!(
                    done.result.expect("a read"),
                    8192,
                    "{}, {short}",
                    world.name
                );
                assert!(
                    done.memory.expect("the memory").as_slice() == bytes,
                    "{short}"
                );
            }
        }
    });
}

#[test]
fn a_refused_way_of_reading_is_not_tried_again_on_that_file() {
    on_every_driver(|mut world| {
        world.file(1, &pattern(4096), true);
        let mode = |world: &World| world.disk.file(FileId(1)).expect("open").io_mode();
        if mode(&world) != IoMode::Direct {
            eprintln!("skipped: no O_DIRECT in {}", world.dir.path().display());
            return;
        }
        for expected in [IoMode::DontCache, IoMode::Buffered] {
            world.disk.faults = Some(Faults::scripted([Fault::Errno(libc::EINVAL)]));
            world
                .one(read(1, 0, 4096, true))
                .result
                .expect("a read all the same");
            assert_eq!(mode(&world), expected, "{}", world.name);
        }
        world.disk.faults = Some(Faults::scripted([Fault::Errno(libc::EINVAL)]));
        let error = world
            .one(read(1, 0, 4096, true))
            .result
            .expect_err("nothing is left to try");
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    });
}

#[test]
fn uring_short_write_eintr_a_sync_that_fails_is_not_repeated() {
    on_every_driver(|mut world| {
        world.file(1, &pattern(4096), true);
        for errno in [
            libc::EIO,
            libc::EINTR,
            libc::EAGAIN,
            libc::ECANCELED,
            libc::ENOSPC,
        ] {
            let script = [Fault::Errno(errno)];
            world.disk.faults = Some(Faults::scripted(script));
            let done = world.one(Op::Sync { file: FileId(1) });
            assert_eq!(done.result.expect_err("failed").raw_os_error(), Some(errno));
            assert_eq!(world.disk.stats().retries_total, 0);
        }
    });
}

#[test]
fn uring_short_write_eintr_writes_go_on_where_they_stopped() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("file");
    let file = SegmentFile::open(&path, Access::CreateNew, false).expect("a file");
    // One inline write tells how far it came; EINTR and EAGAIN are not the caller's business.
    script_writes([Err(libc::EINTR), Err(libc::EAGAIN), Ok(100)]);
    assert_eq!(file.write_at(0, &pattern(LEN)).expect("a short write"), 100);
    script_writes(vec![Err(libc::EAGAIN); 9]);
    let error = file.write_at(0, &[1]).expect_err("nine times");
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
    script_writes([Ok(0)]);
    let error = file.write_at(0, &[1]).expect_err("no progress");
    assert_eq!(error.kind(), std::io::ErrorKind::WriteZero);

    fs::write(&path, pattern(LEN)).expect("a file");
    script_writes([
        Ok(1),
        Err(libc::EINTR),
        Ok(LEN / 3),
        Err(libc::EAGAIN),
        Ok(4097),
    ]);
    zero_range(&file, 1000, 60_000).expect("zeros");
    let mut expected = pattern(LEN);
    expected[1000..61_000].fill(0);
    assert!(fs::read(&path).expect("the file") == expected);
}

/// Signals a thread about a thousand times a second while it reads, writes, syncs and sleeps.
#[test]
fn uring_short_write_eintr_signals_disturb_nothing() {
    extern "C" fn count(_: libc::c_int) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    let handler = count as extern "C" fn(libc::c_int);
    // SAFETY: a sigaction is made of integers; all zeros is one, without SA_RESTART.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as usize;
    // SAFETY: the handler touches one atomic; the action outlives the call.
    unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) };

    on_every_driver(|mut world| {
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        let stop = Arc::new(AtomicBool::new(false));
        // SAFETY: pthread_self takes nothing and touches no memory of ours.
        let target = unsafe { libc::pthread_self() };
        let stopped = stop.clone();
        let sender = crate::spawn_named("signals", move || {
            let mut poller = Poller::new().expect("a poller");
            while !stopped.load(Ordering::Relaxed) {
                // SAFETY: the target joins this thread before it ends.
                unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
                poller.wait(Some(1_000_000)).expect("a wait");
            }
        })
        .expect("a thread");
        let before = SIGNALS.load(Ordering::Relaxed);
        let start = Instant::now();
        let mut round = 0;
        while SIGNALS.load(Ordering::Relaxed) - before < 300 {
            let at = (round * 8192) % (1 << 20);
            let done = world.one(read(1, at as u64, 8192, round % 2 == 0));
            assert_eq!(done.result.expect("a read"), 8192);
            assert!(done.memory.expect("the memory").as_slice() == &bytes[at..at + 8192]);
            let offset = (2 << 20) + round as u64 * 512;
            let wrote = world.disk.write_at(FileId(1), offset, &[round as u8; 512]);
            assert_eq!(wrote.expect("a write"), 512);
            assert_eq!(
                world
                    .one(Op::Sync { file: FileId(1) })
                    .result
                    .expect("a sync"),
                0
            );
            round += 1;
            assert!(start.elapsed() < super::PATIENCE, "too few signals");
        }
        stop.store(true, Ordering::Relaxed);
        sender.join().expect("no panic");
        let mut written = vec![0; 512];
        for done in 0..round {
            let file = world.disk.file(FileId(1)).expect("open");
            file.read_at((2 << 20) + done as u64 * 512, &mut written)
                .expect("a read");
            assert!(
                written.iter().all(|byte| *byte == done as u8),
                "{} at {done}",
                world.name
            );
        }
    });
}

/// 8 places to submit, 16 for completions, 1,000 operations that nobody reaps meanwhile.
#[test]
fn uring_cq_overflow_hang_every_operation_ends_once() {
    let Some(mut plan) = ring_plan() else { return };
    plan.options.entries = (8, 16);
    for step in [1, 3, 5] {
        let mut world = World::new(&plan.clone().from_step(step), "ring of 8 and 16");
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        for user in 0..1000 {
            world.submit(user, read(1, (user % 256) * 4096, 4096, user % 3 > 0));
        }
        script_enters([libc::EBUSY, libc::EAGAIN]);
        let mut all = world.finish(1000);
        all.sort_by_key(|done| done.user);
        for (user, done) in all.iter().enumerate() {
            assert_eq!(done.user, user as u64, "step {step}: lost or doubled");
            assert_eq!(*done.result.as_ref().expect("a read"), 4096);
            let at = user % 256 * 4096;
            let memory = done.memory.as_ref().expect("the memory");
            assert!(
                memory.as_slice() == &bytes[at..at + 4096],
                "step {step}, {user}"
            );
        }
    }
}

#[test]
fn uring_submit_error_uaf_the_table_keeps_the_memory_until_the_end() {
    let Some(plan) = ring_plan() else { return };
    let mut world = World::new(&plan, "ring");
    let bytes = pattern(LEN);
    world.file(1, &bytes, true);
    for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR, libc::ENOMEM] {
        script_enters([errno, errno]);
        let mut other = Memory::new(LEN);
        other.as_mut_slice().fill(0xEE);
        world.submit(77, read(1, 0, LEN, true));
        world.disk.enter();
        // The caller goes on with other memory of the same size; ours is the table's.
        let mut again = Memory::new(LEN);
        again.as_mut_slice().fill(0xEE);
        let done = world.finish(1).pop().expect("one");
        assert_eq!(done.result.expect("a read"), LEN, "errno {errno}");
        assert!(done.memory.expect("the memory").as_slice() == bytes);
        for memory in [&other, &again] {
            assert!(
                memory.as_slice().iter().all(|byte| *byte == 0xEE),
                "errno {errno}"
            );
        }
    }
}

#[test]
fn uring_submit_error_uaf_a_drop_waits_for_what_is_in_flight() {
    on_every_driver(|mut world| {
        world.file(1, &pattern(1 << 20), true);
        for user in 0..100 {
            world.submit(user, read(1, user % 16 * 65_536, 65_536, true));
        }
        world.disk.enter();
        let name = world.name;
        let start = Instant::now();
        drop(world);
        assert!(
            start.elapsed() < Duration::from_secs(5),
            "{name}: {:?}",
            start.elapsed()
        );
    });
}

#[test]
fn uring_cancel_fd_leak_closing_with_reads_in_flight_leaks_no_descriptor() {
    on_every_driver(|mut world| {
        let dir = world.dir.path().to_owned();
        let path = dir.join("file");
        fs::write(&path, pattern(4096)).expect("a file");
        for round in 0..1000 {
            world.open(round, &path, true);
            world.submit(round, read(round, 0, 4096, true));
            world.disk.close_file(FileId(round));
            if round % 100 == 99 {
                for done in world.finish(100) {
                    assert_eq!(done.result.expect("a read"), 4096, "{}", world.name);
                }
            }
        }
        // The pool closes them; each is gone once its queue is through.
        let start = Instant::now();
        while descriptors_into(&dir) > 0 {
            assert!(
                start.elapsed() < super::PATIENCE,
                "{} leaks descriptors",
                world.name
            );
            world
                .one(task(FileTask::SyncDir { path: dir.clone() }))
                .result
                .expect("synced");
        }
    });
}

#[test]
fn uring_cancel_fd_leak_reads_in_flight_never_give_another_files_bytes() {
    on_every_driver(|mut world| {
        let old = pattern(1 << 20);
        for round in 0..20 {
            let file = 1 + round * 2;
            world.file(file, &old, true);
            let path = world.dir.path().join(file.to_string());
            for user in 0..32 {
                world.submit(user, read(file, user * 4096, 4096, true));
            }
            world.disk.close_file(FileId(file));
            fs::remove_file(&path).expect("unlinked");
            world.file(file + 1, &vec![0xAA; 1 << 20], true);
            for done in world.finish(32) {
                let at = usize::try_from(done.user).expect("small") * 4096;
                assert_eq!(done.result.expect("a read"), 4096);
                let memory = done.memory.expect("the memory");
                assert!(memory.as_slice() == &old[at..at + 4096], "{}", world.name);
            }
            world.disk.close_file(FileId(file + 1));
        }
    });
}

/// How many descriptors of this process are open on files below `dir`.
fn descriptors_into(dir: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd")
        .expect("the descriptors")
        .flatten();
    links
        .filter(|link| fs::read_link(link.path()).is_ok_and(|at| at.starts_with(dir)))
        .count()
}

/// Runtime 10.5: results shortened, failed, doubled, delayed and reordered by seed.
#[test]
fn a_hostile_kernel_changes_no_byte_and_loses_no_operation() {
    on_every_driver(|mut world| {
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        for seed in 0..40 {
            let mut faults = Faults::new(seed);
            faults.shorten_percent = 30;
            faults.retry_percent = 10;
            faults.double_percent = 20;
            faults.delay = 5;
            world.disk.faults = Some(faults);
            let mut random = Random(seed + 1000);
            let mut wanted = Vec::new();
            for user in 0..60 {
                let (at, direct) = (random.below(200) * 4096, random.percent(70));
                let len = if direct {
                    4096 << random.below(5)
                } else {
                    1 + random.below(50_000)
                };
                wanted.push((at, len));
                world.submit(user, read(1, at as u64, len, direct));
            }
            let mut all = world.finish(60);
            all.sort_by_key(|done| done.user);
            for (done, (at, len)) in all.iter().zip(wanted) {
                let what = format!("{}, seed {seed}, {}", world.name, done.user);
                assert_eq!(*done.result.as_ref().expect(&what), len, "{what}");
                let memory = done.memory.as_ref().expect("the memory");
                assert!(memory.as_slice() == &bytes[at..at + len], "{what}");
            }
        }
        assert!(
            world.disk.stats().stale_total > 0,
            "no double was ever let through"
        );
        assert_eq!(world.disk.in_flight(), 0);
    });
}
