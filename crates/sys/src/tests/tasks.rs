//! File work: what is synced when, and what a failure leaves (runtime 3.2, 3.11, 3.12).

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::{create, pattern};
use crate::fault::{recorded, script_writes};
use crate::tasks::{TaskWork, run};
use crate::{FileTask, Fill, Memory, sync_dir};

/// Does a file task on this thread, where writes are scripted and effects recorded.
fn do_here(file_task: FileTask) -> std::io::Result<usize> {
    run(
        TaskWork {
            task: file_task,
            file: None,
        },
        &AtomicBool::new(false),
    )
    .0
}

#[test]
fn seg_dir_fsync_names_are_synced_last_and_after_their_files() {
    let dir = tempfile::Builder::new()
        .prefix("d")
        .rand_bytes(0)
        .tempdir_in(tempfile::tempdir().expect("a folder").keep());
    let dir = dir.expect("a folder");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let zeros = Fill::Zeros { bytes_per_s: 0 };
    let effects = recorded(|| {
        do_here(create(&a, 512 << 10, zeros)).expect("created");
    });
    let expected = [
        "create a",
        "write a",
        "sync a",
        "write a",
        "sync a",
        "write a",
        "sync a",
        "sync directory d",
    ];
    assert_eq!(effects, expected);
    let effects = recorded(|| {
        let (from_path, to_path, header) = (a.clone(), b.clone(), Memory::new(4096));
        do_here(FileTask::Recycle {
            from_path,
            to_path,
            header,
        })
        .expect("recycled");
    });
    assert_eq!(
        effects,
        ["rename to b", "write b", "sync b", "sync directory d"]
    );
    let effects = recorded(|| {
        do_here(FileTask::Unlink { path: b.clone() }).expect("unlinked");
    });
    assert_eq!(effects, ["unlink b", "sync directory d"]);
    let effects = recorded(|| {
        crate::Kv::open(&dir.path().join("meta.redb")).expect("a store");
    });
    assert_eq!(effects, ["sync directory d"]);
    sync_dir(&dir.path().join("none")).expect_err("no such directory");
    fs::remove_dir_all(dir.path().parent().expect("the outer folder")).expect("removed");
}

#[test]
fn a_create_or_recycle_that_fails_half_way_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let zeros = Fill::Zeros { bytes_per_s: 0 };
    script_writes([Ok(256 << 10), Ok(1000), Err(libc::ENOSPC)]);
    let error = do_here(create(&a, 1 << 20, zeros)).expect_err("a full disk");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(!a.exists());
    fs::write(&a, pattern(64 << 10)).expect("a file");
    script_writes([Err(libc::EIO)]);
    let (from_path, to_path, header) = (a.clone(), b.clone(), Memory::new(4096));
    do_here(FileTask::Recycle {
        from_path,
        to_path,
        header,
    })
    .expect_err("a bad disk");
    assert!(
        !a.exists() && !b.exists(),
        "a consumed segment without a header is nothing"
    );
}

/// Runtime test 16, on a memory file system of 1 MiB in a mount namespace of this thread.
#[test]
fn a_full_disk_gets_back_what_a_failed_create_took() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().to_owned();
    let test = move || {
        if let Err(error) = mount_small(&path) {
            eprintln!("skipped: mounting is not allowed here ({error})");
            return;
        }
        for fill in [Fill::Zeros { bytes_per_s: 0 }, Fill::Allocate] {
            let big = path.join("big");
            let error = do_here(create(&big, 4 << 20, fill)).expect_err("4 MiB into 1 MiB");
            assert_eq!(
                error.kind(),
                std::io::ErrorKind::StorageFull,
                "{fill:?}: {error}"
            );
            assert!(!big.exists());
            let small = path.join("small");
            do_here(create(&small, 768 << 10, fill)).expect("the space is free again");
            // Overwriting what is allocated works on a full disk.
            let file = fs::OpenOptions::new()
                .write(true)
                .open(&small)
                .expect("the file");
            file.write_all_at(&vec![1; 768 << 10], 0)
                .expect("overwritten");
            do_here(FileTask::Unlink { path: small }).expect("unlinked");
        }
    };
    crate::spawn_named("mount", test)
        .expect("a thread")
        .join()
        .expect("no panic");
}

fn mount_small(path: &Path) -> std::io::Result<()> {
    use crate::syscall::check;
    // SAFETY: unshare takes an integer; this thread alone gets a namespace of its own.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) })?;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    let (none, root) = (std::ptr::null(), c"/".as_ptr());
    // SAFETY: the target is a C string; the other pointers may be null for this call.
    check(unsafe { libc::mount(none, root, none, private, std::ptr::null()) })?;
    let target = crate::file::c_path(path)?;
    let (kind, options) = (c"tmpfs".as_ptr(), c"size=1m".as_ptr().cast());
    // SAFETY: all are C strings that outlive the call.
    check(unsafe { libc::mount(kind, target.as_ptr(), kind, 0, options) })?;
    Ok(())
}

#[test]
fn zeros_are_written_no_faster_than_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let start = Instant::now();
    let fill = Fill::Zeros {
        bytes_per_s: 8 << 20,
    };
    do_here(create(&dir.path().join("a"), 2 << 20, fill)).expect("created");
    // The last of the eight pieces may go at 7/8 of a quarter of a second.
    assert!(
        start.elapsed() >= Duration::from_millis(215),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn zeros_ahead_of_the_tail_touch_nothing_else_and_are_synced() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("a");
    fs::write(&path, pattern(1 << 20)).expect("written");
    let (offset, bytes) = (64 << 10, 300 << 10);
    let effects = recorded(|| {
        let path = path.clone();
        let bytes_per_s = 0;
        do_here(FileTask::Prewrite {
            path,
            offset,
            bytes,
            bytes_per_s,
        })
        .expect("zeros");
    });
    assert_eq!(effects, ["write a", "sync a", "write a", "sync a"]);
    let mut expected = pattern(1 << 20);
    expected[offset as usize..(offset + bytes) as usize].fill(0);
    assert!(fs::read(&path).expect("there") == expected);
    let gone = FileTask::Prewrite {
        path: dir.path().join("b"),
        offset,
        bytes,
        bytes_per_s: 0,
    };
    let error = do_here(gone).expect_err("no such file").to_string();
    assert!(error.contains("/b"), "{error}");
}
