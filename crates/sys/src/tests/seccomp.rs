//! Where io_uring cannot be had: filters, sysctl, locked memory (runtime tests 19 and 20).
//!
//! A filter stays for the life of a process, so each of these runs in a child: this test binary
//! again, with the one test below that is otherwise ignored.

use std::process::Command;

use super::{World, pattern, read};
use crate::syscall::check;
use crate::{Backend, DiskChoice, DiskPlan, FileId, Op};

const ROLE: &str = "PELTON_TEST_CHILD";

/// What the child printed, if it ended well.
fn child(role: &str) -> String {
    let program = std::env::current_exe().expect("this test binary");
    let output = Command::new(program)
        .args([
            "--exact",
            "tests::seccomp::the_child",
            "--ignored",
            "--nocapture",
        ])
        .env(ROLE, role)
        .env_remove("DISK")
        .output()
        .expect("a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{role}: {}\n{text}\n{errors}",
        output.status
    );
    text
}

/// Runs as a child only: `--ignored` with a role in the environment.
#[test]
#[ignore = "run by the other tests of this file, as a child with a role"]
fn the_child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match role.as_str() {
        "memlock" => {
            limit_memlock(16 << 10);
            become_nobody();
        }
        "memlock-many" => {
            limit_memlock(64 << 10);
            become_nobody();
            return memlock_many();
        }
        "EPERM" => filter(ALL, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        "ENOSYS" => filter(ALL, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        "TRAP" => filter(ALL, libc::SECCOMP_RET_TRAP),
        "TRAP enter" => filter(&[libc::SYS_io_uring_enter], libc::SECCOMP_RET_TRAP),
        "EPERM register" => {
            filter(
                &[libc::SYS_io_uring_register],
                libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
            );
        }
        "harmless" => filter(
            &[libc::SYS_ptrace],
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        other => panic!("no role {other}"),
    }
    let plan = DiskPlan::decide(DiskChoice::Auto, 1).expect("auto always gives something");
    println!("report: {}", plan.report());
    match DiskPlan::decide(DiskChoice::Uring, 1) {
        Ok(_) => println!("uring: to be had"),
        Err(error) => println!("uring: {error}"),
    }
    let mut world = World::new(&plan, "child");
    let bytes = pattern(1 << 16);
    world.file(1, &bytes, true);
    let done = world.one(read(1, 4096, 8192, true));
    assert_eq!(done.result.expect("a read"), 8192);
    assert!(done.memory.expect("the memory").as_slice() == &bytes[4096..12_288]);
    world
        .one(Op::Sync { file: FileId(1) })
        .result
        .expect("a sync");
    println!("works");
}

/// The report of a child that must have fallen back, with the cause and a remedy in one line.
fn check_fallback(role: &str, cause: &str, remedy: &str) {
    let text = child(role);
    let line = |start: &str| {
        text.lines()
            .find(|line| line.contains(start))
            .unwrap_or_default()
    };
    let report = line("report: ");
    assert!(
        report.contains("pread pool") && report.contains(cause),
        "{role}: {text}"
    );
    assert!(report.contains(remedy), "{role}: {text}");
    // Runtime test 20: asked for by name, it is an error with the same cause and remedy.
    let uring = line("uring: ");
    assert!(
        uring.contains("cannot be had") && uring.contains(cause),
        "{role}: {text}"
    );
    assert!(uring.contains(remedy), "{role}: {text}");
    assert!(text.contains("works"), "{role}: {text}");
}

#[test]
fn a_filter_that_answers_eperm_leaves_pread() {
    check_fallback("EPERM", "Seccomp: 2) answers EPERM", "seccomp profile");
}

#[test]
fn a_filter_that_answers_enosys_leaves_pread() {
    check_fallback("ENOSYS", "Seccomp: 2) answers ENOSYS", "seccomp profile");
}

#[test]
fn a_filter_that_kills_kills_a_child_of_the_probe_only() {
    check_fallback("TRAP", "kills io_uring with signal 31", "seccomp profile");
    check_fallback(
        "TRAP enter",
        "kills io_uring with signal 31",
        "seccomp profile",
    );
}

#[test]
fn a_filter_on_one_of_the_three_calls_is_found() {
    check_fallback(
        "EPERM register",
        "Seccomp: 2) answers EPERM",
        "seccomp profile",
    );
}

#[test]
fn a_filter_that_leaves_io_uring_alone_changes_nothing() {
    if super::ring_plan().is_none() {
        return;
    }
    let text = child("harmless");
    assert!(
        text.contains("report: io_uring") && text.contains("uring: to be had"),
        "{text}"
    );
    assert!(text.contains("works"), "{text}");
}

#[test]
fn too_little_locked_memory_is_named_with_its_limit() {
    if !root_with_ring() {
        return;
    }
    check_fallback(
        "memlock",
        "ENOMEM: no locked memory left for a ring (limit 16 KiB)",
        "ulimit -l",
    );
}

/// Case URING-MEMLOCK: 1, 8 and 64 shards under 64 KiB, all on a ring or all on pread; 50 rounds.
#[test]
fn uring_memlock_all_shards_run_on_the_same_driver() {
    if !root_with_ring() {
        return;
    }
    let text = child("memlock-many");
    assert!(text.contains("64 shards: Pread"), "{text}");
    assert!(text.contains("not for 64 shards: ENOMEM"), "{text}");
    assert!(text.contains("50 rounds"), "{text}");
}

fn memlock_many() {
    for shards in [1, 8, 64] {
        let plan = DiskPlan::decide(DiskChoice::Auto, shards).expect("auto gives something");
        println!("{shards} shards: {:?}: {}", plan.backend(), plan.report());
        let worlds: Vec<World> = (0..shards).map(|_| World::new(&plan, "child")).collect();
        assert!(
            worlds
                .iter()
                .all(|world| world.disk.report().backend == plan.backend())
        );
    }
    for _ in 0..50 {
        let plan = DiskPlan::decide(DiskChoice::Auto, 1).expect("auto gives something");
        let mut world = World::new(&plan, "child");
        world.file(1, &pattern(4096), true);
        world.one(read(1, 0, 4096, true)).result.expect("a read");
    }
    println!("50 rounds");
}

#[test]
fn the_sysctl_is_named() {
    let proc = tempfile::tempdir().expect("a folder");
    let kernel = proc.path().join("sys/kernel");
    std::fs::create_dir_all(&kernel).expect("folders");
    std::fs::write(kernel.join("io_uring_disabled"), "2\n").expect("a file");
    let report = crate::probe::probed_report(DiskChoice::Auto, proc.path()).expect("a fallback");
    assert_eq!(report.backend, Backend::Pread);
    assert_eq!(report.why.as_deref(), Some("kernel.io_uring_disabled is 2"));
    assert_eq!(
        report.remedy.as_deref(),
        Some("sysctl kernel.io_uring_disabled=0")
    );
    let error = crate::probe::probed_report(DiskChoice::Uring, proc.path()).expect_err("no start");
    assert_eq!(
        error.to_string(),
        "io_uring is asked for and cannot be had: kernel.io_uring_disabled is 2; \
         sysctl kernel.io_uring_disabled=0, or choose the driver auto (DISK=auto)"
    );
}

#[test]
fn pread_by_choice_says_so() {
    let plan = DiskPlan::decide(DiskChoice::Pread, 1).expect("always to be had");
    assert_eq!(
        plan.report().to_string(),
        "pread pool: it is chosen; choose auto (DISK=auto) for io_uring"
    );
    assert_eq!(DiskChoice::parse(" URING "), Ok(DiskChoice::Uring));
    assert!(DiskChoice::parse("mmap").is_err());
}

const ALL: &[libc::c_long] = &[
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
];

/// Answers `action` to the calls and allows all others, on every thread of the process.
fn filter(calls: &[libc::c_long], action: u32) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("an opcode"),
        jt,
        jf,
        k,
    };
    let mut program = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        let number = u32::try_from(*call).expect("a number");
        program.push(step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            0,
            1,
            number,
        ));
        program.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, action));
    }
    program.push(step(
        libc::BPF_RET | libc::BPF_K,
        0,
        0,
        libc::SECCOMP_RET_ALLOW,
    ));
    let len = u16::try_from(program.len()).expect("a short program");
    let program = libc::sock_fprog {
        len,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: prctl takes integers here.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }).expect("allowed");
    let (set, flags) = (
        libc::SECCOMP_SET_MODE_FILTER,
        libc::SECCOMP_FILTER_FLAG_TSYNC,
    );
    // SAFETY: the program and its steps outlive the call.
    let code = unsafe { libc::syscall(libc::SYS_seccomp, set, flags, &raw const program) };
    assert_eq!(code, 0, "no filter: {}", std::io::Error::last_os_error());
}

fn limit_memlock(bytes: u64) {
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: the pointer covers one rlimit that outlives the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }).expect("allowed");
}

fn become_nobody() {
    // SAFETY: setuid takes an integer.
    check(unsafe { libc::setuid(65_534) }).expect("root may");
}

fn root_with_ring() -> bool {
    // SAFETY: geteuid takes nothing and touches no memory of ours.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: only root is exempt from the limit and may become somebody else");
    }
    root && super::ring_plan().is_some()
}
