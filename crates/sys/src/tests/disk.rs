//! The contract of operations: what goes in, what comes back.

use std::fs;

use super::{create, on_every_driver, pattern, read, task};
use crate::{FileId, FileTask, Fill, IoFault, Kv, KvBatch, KvWrite, Memory, Op};

#[test]
fn a_read_gives_the_bytes_and_the_memory_back() {
    on_every_driver(|mut world| {
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        for (offset, len, direct) in [
            (0, 4096, true),
            (512 * 1024, 256 * 1024, true),
            (4096, 4096, false),
            (3, 17, true),
        ] {
            let done = world.one(read(1, offset, len, direct));
            assert_eq!(done.result.expect("a read"), len, "{}", world.name);
            let memory = done.memory.expect("the memory");
            let at = usize::try_from(offset).expect("small");
            assert!(
                memory.as_slice() == &bytes[at..at + len],
                "{} at {offset}",
                world.name
            );
        }
        assert_eq!(world.disk.in_flight(), 0);
    });
}

#[test]
fn many_operations_in_flight_end_once_each() {
    on_every_driver(|mut world| {
        let bytes = pattern(1 << 20);
        world.file(1, &bytes, true);
        for user in 0..200 {
            world.submit(user, read(1, user * 4096, 4096, true));
            if user % 50 == 0 {
                world.submit(1000 + user, Op::Sync { file: FileId(1) });
            }
        }
        assert!(world.disk.sync_in_flight());
        assert_eq!(world.disk.reads_in_flight(), 200);
        let mut all = world.finish(204);
        all.sort_by_key(|done| done.user);
        for done in &all[..200] {
            let at = usize::try_from(done.user * 4096).expect("small");
            let memory = done.memory.as_ref().expect("the memory");
            assert!(memory.as_slice() == &bytes[at..at + 4096], "{}", world.name);
        }
        assert!(
            all[200..]
                .iter()
                .map(|done| done.user)
                .eq([1000, 1050, 1100, 1150])
        );
        assert!(all.iter().all(|done| done.result.is_ok()), "{}", world.name);
    });
}

#[test]
fn a_full_table_gives_the_operation_back() {
    on_every_driver(|mut world| {
        world.file(1, &pattern(4096), true);
        for user in 0..1024 {
            world.submit(user, read(1, 0, 512, true));
        }
        let Err(Op::Read { memory, .. }) = world.disk.submit(1024, read(1, 0, 512, true)) else {
            panic!("{}: 1,025 operations were taken", world.name);
        };
        assert_eq!(memory.len(), 512);
        let mut users: Vec<u64> = world.finish(1024).iter().map(|done| done.user).collect();
        users.sort_unstable();
        assert!(users.into_iter().eq(0..1024), "{}", world.name);
        assert_eq!(world.disk.stats().overflow_total, 0);
    });
}

#[test]
fn the_end_of_a_file_is_a_typed_error_with_the_bytes_before_it() {
    on_every_driver(|mut world| {
        let bytes = pattern(10_000);
        world.file(1, &bytes, true);
        for (offset, len, direct) in [
            (0, 65_536, true),
            (0, 65_536, false),
            (8192, 4096, true),
            (12_288, 4096, true),
        ] {
            let done = world.one(read(1, offset, len, direct));
            let got = 10_000_usize.saturating_sub(usize::try_from(offset).expect("small"));
            let error = done.result.expect_err("beyond the end");
            let expected = IoFault::Truncated { got, wanted: len };
            assert_eq!(
                IoFault::of(&error),
                Some(expected),
                "{}: {error}",
                world.name
            );
            let memory = done.memory.expect("the memory");
            let at = usize::try_from(offset).expect("small").min(10_000);
            assert!(memory.as_slice()[..got] == bytes[at..], "{}", world.name);
        }
    });
}

#[test]
fn a_file_that_is_not_open_is_ebadf_with_the_memory() {
    on_every_driver(|mut world| {
        let done = world.one(read(9, 0, 4096, true));
        let error = done.result.expect_err("no such file");
        assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        assert_eq!(done.memory.expect("the memory").len(), 4096);
    });
}

#[test]
fn created_recycled_and_unlinked_files_are_as_asked() {
    on_every_driver(|mut world| {
        let (first, second) = (world.dir.path().join("a"), world.dir.path().join("b"));
        for fill in [Fill::Zeros { bytes_per_s: 0 }, Fill::Allocate] {
            let done = world.one(task(create(&first, 1 << 20, fill)));
            assert_eq!(done.result.expect("created"), 1 << 20);
            let bytes = fs::read(&first).expect("the file");
            assert_eq!(bytes.len(), 1 << 20);
            assert!(bytes[..4096].iter().all(|byte| *byte == 9));
            assert!(bytes[4096..].iter().all(|byte| *byte == 0));

            let mut header = done.memory.expect("the header back");
            header.as_mut_slice().fill(8);
            let (from_path, to_path) = (first.clone(), second.clone());
            let done = world.one(task(FileTask::Recycle {
                from_path,
                to_path,
                header,
            }));
            done.result.expect("recycled");
            assert!(!first.exists());
            assert_eq!(fs::read(&second).expect("the file")[4095..4097], [8, 0]);

            world.open(5, &second, true);
            world
                .one(task(FileTask::Forget { file: FileId(5) }))
                .result
                .expect("forgotten");
            world.disk.close_file(FileId(5));
            world
                .one(task(FileTask::Unlink {
                    path: second.clone(),
                }))
                .result
                .expect("unlinked");
            world
                .one(task(FileTask::Unlink {
                    path: second.clone(),
                }))
                .result
                .expect("gone already");
            assert!(!second.exists());
        }
    });
}

#[test]
fn a_failed_create_or_recycle_leaves_nothing_and_touches_nothing_else() {
    on_every_driver(|mut world| {
        let taken = world.dir.path().join("taken");
        fs::write(&taken, "old").expect("a file");
        let fill = Fill::Zeros { bytes_per_s: 0 };
        let error = world
            .one(task(create(&taken, 8192, fill)))
            .result
            .expect_err("taken");
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        let from_path = world.dir.path().join("from");
        fs::write(&from_path, "consumed").expect("a file");
        let (header, to_path) = (Memory::new(4096), taken.clone());
        let recycle = FileTask::Recycle {
            from_path: from_path.clone(),
            to_path,
            header,
        };
        let done = world.one(task(recycle));
        assert_eq!(
            done.result.expect_err("taken").kind(),
            std::io::ErrorKind::AlreadyExists
        );
        assert!(done.memory.is_some() && from_path.exists());
        assert_eq!(fs::read(&taken).expect("the file"), b"old");

        let huge = world.dir.path().join("huge");
        let done = world.one(task(create(&huge, 1 << 50, Fill::Allocate)));
        let error = done.result.expect_err("a petabyte");
        assert!(error.to_string().contains("huge"), "{error}");
        assert!(
            !huge.exists(),
            "{}: a failed file was left behind",
            world.name
        );
    });
}

#[test]
fn metadata_goes_through_the_pool_in_one_transaction() {
    on_every_driver(|mut world| {
        let kv = Kv::open(&world.dir.path().join("meta.redb")).expect("a store");
        let writes = vec![KvWrite {
            key: "topic/a".to_owned(),
            value: Some(vec![1]),
        }];
        let batch = KvBatch {
            kv: kv.clone(),
            writes,
        };
        assert_eq!(
            world
                .one(task(FileTask::Kv(batch)))
                .result
                .expect("written"),
            1
        );
        assert_eq!(
            kv.load().expect("a load"),
            vec![("topic/a".to_owned(), vec![1])]
        );
    });
}

#[test]
fn closing_a_file_number_frees_it_for_another_file() {
    on_every_driver(|mut world| {
        world.file(1, &[1; 4096], true);
        let path = world.dir.path().join("1");
        assert!(
            world
                .disk
                .open_file(FileId(1), &path, crate::Access::Read, true)
                .is_err()
        );
        world.disk.close_file(FileId(1));
        assert!(world.disk.file(FileId(1)).is_none());
        world.open(1, &path, false);
        let written = world
            .disk
            .write_at(FileId(1), 4096, &[2; 10])
            .expect("a write");
        assert_eq!(written, 10);
        let file = world.disk.file(FileId(1)).expect("open");
        assert_eq!(fs::metadata(file.path()).expect("a size").len(), 4106);
        let mut bytes = [0; 20];
        assert_eq!(file.read_at(4090, &mut bytes).expect("a read"), 16);
        assert_eq!(
            bytes[..16],
            [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
        );
    });
}
